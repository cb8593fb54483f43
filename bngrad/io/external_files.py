"""Security checks of external data: it must be in regular files in the model's folder, and complete.

A malicious model could otherwise name any file that the user can read, and its content would be copied into the
output. Reading a device or a FIFO might never end.
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

    import onnx

_MAX_DIGITS = 18
"""So many digits are less than 2^63."""


def require_external_data(
    model: ir.Model, folder: str | os.PathLike[str], *, missing: str = "put the file beside the model"
) -> None:
    """Checks that all external data can be read, without reading it.

    Args:
        model: The model.
        folder: The folder of the model.
        missing: The remedy for a missing file, for the error message.

    Raises:
        InputError: A file is outside the folder, not a regular file, missing, or too short.
    """
    sizes: dict[str, int | None] = {}
    for tensor in external_tensors(model):
        location = os.fspath(tensor.location)
        if location not in sizes:
            try:
                sizes[location] = _size(Path(folder), location)
            except (OSError, ValueError, RuntimeError) as error:
                # Before Python 3.13 a circular link raises a RuntimeError.
                reason = error.strerror if isinstance(error, OSError) else error
                raise _unreadable(tensor, str(reason)) from None
        size, start, needed = sizes[location], tensor.offset or 0, tensor.nbytes
        if size is None:
            raise _unreadable(tensor, f"it does not exist; {missing}")
        if tensor.length not in (None, 0, needed):  # 0 stands for none in ONNX Runtime, too
            raise _unreadable(tensor, f"the model states {tensor.length} bytes there; expected {needed}")
        if start < 0 or needed < 0 or start + needed > size:
            raise _unreadable(tensor, f"it has {size} bytes; expected {needed} from byte {start} on")


def _unreadable(tensor: ir.ExternalTensor, reason: str) -> InputError:
    return InputError(
        f"the model's external data cannot be read: {str(tensor.location)[:200]!r}, of tensor {tensor.name!r}: "
        f"{reason}"
    )


def _size(folder: Path, location: str) -> int | None:
    """Returns the size of a file of external data in bytes; None if it does not exist."""
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
        raise ValueError("it is not a regular file")
    if status.st_nlink > 1:  # it may be any file that the user can read; onnx-ir 1.1 refuses it, too
        raise ValueError("it is a hard link, a file with several names; expected a copy of it")
    return status.st_size


def require_entries(tensor: onnx.TensorProto) -> None:
    """Checks that the entries of a tensor in external data are what onnx-ir can read.

    Raises:
        ValueError: It has no location, or an offset or a length that is not a number of bytes.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if not entries.get("location"):
        raise ValueError(f"tensor {tensor.name!r} is external data without a location")
    for key in ("offset", "length"):
        value = entries.get(key, "0")
        if not (value.isascii() and value.isdigit() and len(value) <= _MAX_DIGITS):
            entry = f"external data with {key} {value[:40]!r}"
            raise ValueError(f"tensor {tensor.name!r} is {entry}; expected a number of bytes")


def external_tensors(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    """Yields all tensors of a model that are in files of external data."""
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
