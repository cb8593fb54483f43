"""Weights beside a model's file: ONNX's external data.

They go from file to file without being held in memory, into a new file that no other model can know: a model that
is written over keeps its own weights until the new one has taken its place.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

import onnx
import onnx_ir as ir

from bngrad.errors import InputError
from bngrad.graph.nodes import all_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ExternalData = Literal["copied", "shared"]
"""Where the weights of a model that is written are.

``copied``: in a file beside it. ``shared``: those that were in files stay in those files.
"""

_SMALL = 256
"""Bytes of a tensor that stays in the model's own file; shapes and axes are among these."""

_READ_AT_ONCE = 1024
"""Bytes of a tensor whose numbers onnx's shape inference may depend on, which reads no files."""

_PAGED, _PAGE, _ITEM = 1 << 20, 1 << 16, 64
"""A tensor of more bytes begins at a page that every system can map, any other at a cache line."""


def initializers(model: ir.Model) -> list[ir.Value]:
    """The initializers of a model and of its subgraphs that have a value."""
    values = [value for graph in model.graphs() for value in graph.initializers.values()]
    return [value for value in values if value.const_value is not None]


def data_files(path: Path) -> Iterator[Path]:
    """The names that the data of a model at a path may have, best first; without end."""
    yield path.with_name(f"{path.name}.data")
    for number in itertools.count(1):
        yield path.with_name(f"{path.name}.{number}.data")


def replaced_files(path: Path, model: ir.Model) -> list[Path]:
    """The data that nothing needs any more once a model has been written over the one at a path.

    That is what the old model names, under a name that only we give, unless the new model's weights are in it.
    """
    ours = re.compile(rf"{re.escape(path.name)}(\.\d+)?\.data")
    existing = [data for data in path.parent.iterdir() if ours.fullmatch(data.name)]
    needed = {os.path.realpath(tensor.path) for tensor in _external(model)}
    return [data for data in existing if os.path.realpath(data) not in needed and names(path, data)]


def create(path: Path, made: list[Path]) -> BinaryIO:
    """Makes the data file of a model at a path under the first name that is free, for writing.

    Args:
        path: Where the model is to be.
        made: Gets the file's path, before there is such a file: an interrupt may come at any time.
    """
    for data in data_files(path):
        if data.exists():
            continue
        made.append(data)
        try:
            return data.open("xb")
        except FileExistsError:  # another process was faster
            made.remove(data)
    raise AssertionError("there are names without end")


def tidy(path: Path, files: Iterable[Path]) -> None:
    """Removes those of some data files that the model at a path, whichever it is by now, has no tensors in."""
    for file in files:
        if not names(path, file):
            with contextlib.suppress(OSError):
                file.unlink()


def write(values: Iterable[ir.Value], file: BinaryIO, data: Path) -> None:
    """Writes initializers to a data file, and has them refer to it.

    Raises:
        OSError: The file cannot be written, or one that a tensor is in cannot be read.
        ValueError: A tensor's data are shorter or longer than its type and shape say.
    """
    for value in values:
        tensor = value.const_value
        if tensor is None:
            continue
        step = _PAGE if tensor.nbytes > _PAGED else _ITEM
        offset = -(-file.tell() // step) * step
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
    """Whether an initializer is in a file."""
    return isinstance(value.const_value, ir.ExternalTensor)


def is_movable(value: ir.Value) -> bool:
    """Whether an initializer can be in a data file, and is large enough."""
    tensor = value.const_value
    return tensor is not None and tensor.nbytes > _SMALL and tensor.dtype != ir.DataType.STRING


def load(values: Iterable[ir.Value]) -> None:
    """Reads initializers from the files that they are in.

    Raises:
        OSError: There is no such file.
        ValueError: It is too short, or out of bounds.
    """
    for value in values:
        if isinstance(value.const_value, ir.ExternalTensor):
            (value.const_value,) = ir.external_data.convert_tensors_from_external([value.const_value])


def with_small_tensors(model: ir.Model) -> ir.Model:
    """Returns a model whose small tensors, and those in nodes' attributes, are in memory.

    Args:
        model: Any model; it is not changed.

    Returns:
        The model itself where nothing is to be done, else a copy.

    Raises:
        OSError: There is no such file.
        ValueError: It is too short, or out of bounds.
    """
    small = [v for v in initializers(model) if is_external(v) and _nbytes(v) <= _READ_AT_ONCE]
    if not small and not _external_attributes(model):
        return model
    model = model.clone()
    load(v for v in initializers(model) if _nbytes(v) <= _READ_AT_ONCE)
    load_attributes(model)
    return model


def in_memory(model: ir.Model) -> ir.Model:
    """Returns a model all of whose tensors are in memory: the model itself if they are, else a copy.

    Raises:
        OSError: There is no such file.
        ValueError: It is too short, or out of bounds.
    """
    if not any(map(is_external, initializers(model))) and not _external_attributes(model):
        return model
    model = model.clone()
    load(initializers(model))
    load_attributes(model)
    return model


def require_whole(values: Iterable[ir.Value]) -> None:
    """Sees to it that files have all of the tensors that are in them.

    Raises:
        OSError: There is no such file.
        ValueError: It is too short.
    """
    for value in values:
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor):
            size, end = Path(tensor.path).stat().st_size, (tensor.offset or 0) + tensor.nbytes
            if size < end:
                raise ValueError(f"tensor {value.name!r} ends at byte {end} of {tensor.path}, which has {size}")


def share(model: ir.Model, folder: Path) -> None:
    """Has tensors that are in files name these as a model in another folder has to.

    Raises:
        InputError: A file is not in that folder, nor below it: ONNX has no name for it.
        OSError, ValueError: It is missing, or too short.
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
                f"the weights in {tensor.path} cannot be shared with a model in {folder}: ONNX has external data "
                "in the model's own folder or below; write to that folder, or pass --external-data copied"
            )
        location = file.relative_to(here).as_posix()
        value.const_value = _at(folder, location, tensor.offset or 0, tensor)


def names(path: Path, data: Path) -> bool:
    """Whether the model at a path has tensors in a file beside it.

    The name is looked for as protobuf writes it: what is at the path may be any file, of any size.
    """
    entry = onnx.StringStringEntryProto(key="location", value=data.name).SerializeToString()
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(entry) >= 0


def load_attributes(model: ir.Model) -> None:
    """Reads tensors in nodes' attributes, which are small, from their files."""
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


def _external(model: ir.Model) -> list[ir.ExternalTensor]:
    tensors = [value.const_value for value in initializers(model)]
    return [tensor for tensor in tensors if isinstance(tensor, ir.ExternalTensor)]


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
