"""Reading and writing ONNX external data: tensors stored in files beside the model.

Tensors are copied from file to file without being held in memory. Each model is written with a new data file, so
that a model that is being replaced keeps its weights until the new one is complete. Data from before are never
changed or removed.
"""

from __future__ import annotations

import contextlib
import filecmp
import itertools
import mmap
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

import onnx
import onnx_ir as ir

from bngrad.errors import InputError
from bngrad.graph.nodes import all_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ExternalData = Literal["copied", "shared"]
"""The files that store the weights of a written model.

``copied``: in a data file beside the model. ``shared``: external data stays in the files it is in.
"""

_MAX_INLINE_BYTES = 256
"""Tensors up to this size, such as shapes and axes, are always stored in the model file."""

_MAX_EAGER_BYTES = 1024
"""Tensors up to this size are loaded with the model: onnx's shape inference needs shapes but reads no files."""

_MIN_PAGED_BYTES, _PAGE_BYTES, _CACHE_LINE = 1 << 20, 1 << 16, 64
"""Tensors of more than 1 MiB are aligned to 64 KiB, so that any system can map them; others to 64 bytes."""


def initializers(model: ir.Model) -> list[ir.Value]:
    """Returns the initializers of a model and its subgraphs that have a value."""
    values = [value for graph in model.graphs() for value in graph.initializers.values()]
    return [value for value in values if value.const_value is not None]


def data_files(path: Path) -> Iterator[Path]:
    """Yields the names that a model's data file may have, in order of preference, without end."""
    yield path.with_name(f"{path.name}.data")
    for number in itertools.count(1):
        yield path.with_name(f"{path.name}.{number}.data")


def left_over(path: Path) -> list[Path]:
    """Returns the data files with a name from `data_files` that the model at a path does not refer to.

    They are never removed, because another model may: one that shares them, a copy, or a model in a folder above.
    """
    pattern = re.compile(rf"{re.escape(path.name)}(\.\d+)?\.data")
    existing = [data for data in path.parent.iterdir() if pattern.fullmatch(data.name)]
    return sorted(data for data in existing if not names(path, data))


def reuse(values: Iterable[ir.Value], new: Path, path: Path) -> None:
    """Replaces references to a new data file by references to an older one of the same model with the same bytes.

    Args:
        values: The initializers that are in the new file.
        new: The new file, which has no reference afterwards if there is such an older one.
        path: The path of the model.
    """
    for old in data_files(path):
        if old == new or not old.exists():
            return
        status = old.lstat()
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and filecmp.cmp(old, new, shallow=False):
            for value in values:
                tensor = value.const_value
                if isinstance(tensor, ir.ExternalTensor):
                    value.const_value = _at(path.parent, old.name, tensor.offset or 0, tensor)
            return


def create(path: Path, created: list[Path]) -> BinaryIO:
    """Creates a new data file for the model at a path, under the first free name, and opens it for writing.

    Args:
        path: The path of the model.
        created: The file's path is appended to it before the file is created, because an interrupt may come at any
            time.
    """
    for data in data_files(path):
        if data.exists():
            continue
        created.append(data)
        try:
            return data.open("xb")
        except FileExistsError:  # another process was faster
            created.remove(data)
    raise AssertionError("data_files never ends")


def tidy(path: Path, files: Iterable[Path]) -> None:
    """Removes those data files that the model that is now at a path does not refer to."""
    for file in files:
        if not names(path, file):
            with contextlib.suppress(OSError):
                file.unlink()


def write(values: Iterable[ir.Value], file: BinaryIO, data: Path) -> None:
    """Writes initializers to a data file and replaces their tensors by references to it.

    Raises:
        OSError: The file cannot be written, or a tensor's own file cannot be read.
        ValueError: The size of a tensor's data does not match its type and shape.
    """
    for value in values:
        tensor = value.const_value
        if tensor is None:
            continue
        alignment = _PAGE_BYTES if tensor.nbytes > _MIN_PAGED_BYTES else _CACHE_LINE
        offset = -(-file.tell() // alignment) * alignment
        file.seek(offset)
        if isinstance(tensor, ir.ExternalTensor):
            tensor.tofile(file)
        else:
            file.write(tensor.tobytes())
        length = file.tell() - offset
        if length != tensor.nbytes:
            raise ValueError(f"tensor {value.name!r} has {length} bytes of data; expected {tensor.nbytes}")
        value.const_value = _at(data.parent, data.name, offset, tensor)


def is_external(value: ir.Value) -> bool:
    """Tests whether an initializer is external data."""
    return isinstance(value.const_value, ir.ExternalTensor)


def is_movable(value: ir.Value) -> bool:
    """Tests whether an initializer can be stored as external data and is large enough for it."""
    tensor = value.const_value
    return tensor is not None and tensor.nbytes > _MAX_INLINE_BYTES and tensor.dtype != ir.DataType.STRING


def load(values: Iterable[ir.Value]) -> None:
    """Loads initializers that are external data into memory.

    Raises:
        OSError: A file does not exist or cannot be read.
        ValueError: A file is too short, or an offset is out of bounds.
    """
    for value in values:
        if isinstance(value.const_value, ir.ExternalTensor):
            (value.const_value,) = ir.external_data.convert_tensors_from_external([value.const_value])


def with_small_tensors(model: ir.Model) -> ir.Model:
    """Returns a model whose small tensors, and all tensors in attributes, are in memory.

    Args:
        model: The model. It is not modified.

    Returns:
        The model itself if there is nothing to do, else a copy.

    Raises:
        OSError: A file does not exist or cannot be read.
        ValueError: A file is too short, or an offset is out of bounds.
    """
    small = [v for v in initializers(model) if is_external(v) and _nbytes(v) <= _MAX_EAGER_BYTES]
    if not small and not _external_attributes(model):
        return model
    model = model.clone()
    load(v for v in initializers(model) if _nbytes(v) <= _MAX_EAGER_BYTES)
    load_attributes(model)
    return model


def in_memory(model: ir.Model) -> ir.Model:
    """Returns a model without external data: the model itself if it has none, else a copy with all data loaded.

    Raises:
        OSError: A file does not exist or cannot be read.
        ValueError: A file is too short, or an offset is out of bounds.
    """
    if not any(map(is_external, initializers(model))) and not _external_attributes(model):
        return model
    model = model.clone()
    load(initializers(model))
    load_attributes(model)
    return model


def require_whole(values: Iterable[ir.Value]) -> None:
    """Checks that the files of external data are long enough for their tensors.

    Raises:
        OSError: A file does not exist or cannot be read.
        ValueError: A file is too short.
    """
    for value in values:
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor):
            size, end = Path(tensor.path).stat().st_size, (tensor.offset or 0) + tensor.nbytes
            if size < end:
                raise ValueError(
                    f"tensor {value.name!r} ends at byte {end} of {tensor.path}, which has {size} bytes"
                )


def share(model: ir.Model, folder: Path) -> None:
    """Makes the locations of external data relative to another folder, which the model will be written to.

    Raises:
        InputError: A file is not in that folder or below it, which ONNX cannot express.
        OSError, ValueError: A file is missing or too short.
    """
    require_whole(initializers(model))
    here = folder.resolve()
    for value in initializers(model):
        tensor = value.const_value
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        file = Path(os.path.realpath(tensor.path))
        if not file.is_relative_to(here):
            raise InputError(
                f"the weights in {tensor.path} cannot be shared with a model in {folder}: ONNX requires external "
                "data in the model's folder or below it; write to that folder, or pass --external-data copied"
            )
        location = file.relative_to(here).as_posix()
        value.const_value = _at(folder, location, tensor.offset or 0, tensor)


def names(path: Path, data: Path) -> bool:
    """Tests whether the model at a path refers to a data file beside it.

    The file is searched for the serialized entry, because it may be of any size and need not be a valid model.
    """
    entry = onnx.StringStringEntryProto(key="location", value=data.name).SerializeToString()
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(entry) >= 0


def load_attributes(model: ir.Model) -> None:
    """Loads tensors in attributes that are external data into memory."""
    for node, name, attribute in _external_attributes(model):
        (tensor,) = ir.external_data.convert_tensors_from_external([attribute.value])
        node.attributes[name] = ir.AttrTensor(name, tensor)


def _external_attributes(model: ir.Model) -> list[tuple[ir.Node, str, ir.Attr]]:
    return [
        (node, name, attribute)
        for node in all_nodes(model)
        for name, attribute in node.attributes.items()
        if isinstance(attribute.value, ir.ExternalTensor)
    ]


def _nbytes(value: ir.Value) -> int:
    return 0 if value.const_value is None else value.const_value.nbytes


def _at(folder: Path, location: str, offset: int, tensor: ir.TensorProtocol) -> ir.ExternalTensor:
    return ir.ExternalTensor(
        location,
        offset,
        tensor.nbytes,
        tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=tensor.name or "",
        doc_string=tensor.doc_string,
        base_dir=folder,
    )
