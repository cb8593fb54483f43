"""Tensors that a model keeps in other files: regular files in the model's own folder, and only if they are whole.

A model says where its data is, so a model from anywhere might name any file of the reader's: what is in it would
go into the output. A device never ends, and a FIFO that nobody writes to never begins.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.errors import InputError
from bngrad.graph.subgraphs import subgraphs

if TYPE_CHECKING:
    from collections.abc import Iterator


def require_external_data(
    model: ir.Model, folder: str | os.PathLike[str], *, missing: str = "put the file beside the model"
) -> None:
    """Sees to it that all external data can be read; it is not read yet.

    Args:
        model: The model.
        folder: Where the model is.
        missing: What to do about a file that is not there, for the message.

    Raises:
        InputError: A tensor's data is outside the folder, in no regular file, missing, or longer than its file.
    """
    sizes: dict[str, int | None] = {}
    for tensor in _external_tensors(model):
        location = os.fspath(tensor.location)
        if location not in sizes:
            try:
                sizes[location] = _size(Path(folder), location)
            except (OSError, ValueError, RuntimeError) as error:
                # Before Python 3.13 a link to itself is a RuntimeError.
                reason = error.strerror if isinstance(error, OSError) else error
                raise _unreadable(tensor, str(reason)) from None
        size, start, needed = sizes[location], tensor.offset or 0, tensor.nbytes
        if size is None:
            raise _unreadable(tensor, f"it does not exist; {missing}")
        if start < 0 or needed < 0 or start + max(needed, tensor.length or 0) > size:
            raise _unreadable(tensor, f"it has {size} bytes; expected {needed} from byte {start} on")


def _unreadable(tensor: ir.ExternalTensor, reason: str) -> InputError:
    return InputError(
        f"the model's external data cannot be read: {str(tensor.location)[:200]!r}, of tensor {tensor.name!r}: "
        f"{reason}"
    )


def _size(folder: Path, location: str) -> int | None:
    """The size of a file of external data in bytes; None if there is no such file."""
    if not location or Path(location).is_absolute():
        raise ValueError("expected a path relative to the model's folder")
    home, path = folder.resolve(), folder / location
    if not path.resolve().is_relative_to(home):
        raise ValueError(f"it is outside the model's folder; expected a file in {home}")
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is no regular file")
    return status.st_size


def _external_tensors(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    waiting: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    while waiting:
        graph = waiting.pop()
        tensors = [] if isinstance(graph, ir.Function) else [v.const_value for v in graph.initializers.values()]
        for node in graph:
            waiting += subgraphs(node)
            for attribute in node.attributes.values():
                if attribute.is_ref():
                    continue
                if attribute.type == ir.AttributeType.TENSOR:
                    tensors.append(attribute.as_tensor())
                elif attribute.type == ir.AttributeType.TENSORS:
                    tensors += attribute.as_tensors()
        yield from (tensor for tensor in tensors if isinstance(tensor, ir.ExternalTensor))
