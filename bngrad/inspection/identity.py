"""The identity of a model: its files with their hashes, and its versions."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bngrad.errors import InputError
from bngrad.graph.nodes import all_nodes, default_opset
from bngrad.io.external_files import external_tensors

if TYPE_CHECKING:
    import os

    import onnx_ir as ir


@dataclass(frozen=True)
class HashedFile:
    """A file of a model."""

    path: str
    """The path of the file."""
    bytes: int
    """The size of the file."""
    sha256: str
    """The SHA-256 of the file, in hexadecimal."""


@dataclass(frozen=True)
class Identity:
    """The identity of a model."""

    files: list[HashedFile]
    """The model file, followed by its external data; empty for a model in memory."""
    opset: int
    """The version of ai.onnx; 0 if it is not imported."""
    ir_version: int
    """The IR version of the model."""
    producer: str
    """Name and version of the program that wrote the model; empty if the model has none."""
    nodes: int
    """The number of nodes, including those of subgraphs and functions."""


def identity(model: ir.Model, path: str | os.PathLike[str] | None = None) -> Identity:
    """Returns what identifies a model.

    Args:
        model: The model.
        path: The file that it was loaded from; None for a model in memory.

    Raises:
        InputError: A file cannot be read.
    """
    files = [] if path is None else [str(path), *sorted({str(tensor.path) for tensor in external_tensors(model)})]
    return Identity(
        files=[_hashed(Path(file)) for file in files],
        opset=default_opset(model) or 0,
        ir_version=model.ir_version,
        producer=" ".join(filter(None, (model.producer_name, model.producer_version))),
        nodes=sum(1 for _ in all_nodes(model)),
    )


def _hashed(file: Path) -> HashedFile:
    try:
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
            return HashedFile(str(file), content.tell(), digest)
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None
