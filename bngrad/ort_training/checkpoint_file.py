"""The checkpoint files of `onnxruntime.training`: flatbuffers with the identifier ODTC, version 2.

A file has the parameters, the state of the optimizer and the user's properties. Tensors may lie outside of it, in
``<file>.data``, where each has an offset; a flatbuffer holds no more than 2 GB. A nominal checkpoint has the names
of the parameters only.
"""

from __future__ import annotations

import contextlib
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx_ir as ir

from bngrad.errors import InputError
from bngrad.io.writing import replacing
from bngrad.ort_training import flatbuffer
from bngrad.ort_training.checkpoint_schema import CHECKPOINT
from bngrad.ort_training.errors import OrtTrainingError
from bngrad.ort_training.flatbuffer import MalformedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import BinaryIO

    import numpy.typing as npt

    Array: TypeAlias = npt.NDArray[Any]
    Property: TypeAlias = int | float | str

VERSION = 2

GROUP = "group0"
"""The only group of the optimizers of `onnxruntime.training`."""

FIRST_RATE = float(np.float32(1e-3))
"""The learning rate that an optimizer begins with, also a resumed one."""

_PROPERTIES = {"ints": int, "floats": float, "strings": str}
"""The type of the properties in each vector of the bag."""

_IDENTIFIER = b"ODTC"
_MAX_INLINE_BYTES = 1_800_000_000
"""With more bytes of tensors than this they go to the data file."""
_ALIGNMENT = 64
"""Of tensors in the data file."""


@dataclass
class OptimizerGroup:
    """The state of an optimizer."""

    step: int
    """The number of updates."""
    initial_learning_rate: float
    """The highest learning rate of the last `LinearLRScheduler`; `FIRST_RATE` without one."""
    momentums: dict[str, dict[str, Array]]
    """Of each trainable parameter, by its name: ``momentum0``, and ``momentum1`` for AdamW."""
    learning_rate: float = FIRST_RATE
    """That of the next update, which a file does not have."""


@dataclass
class Checkpoint:
    """The content of a checkpoint file, in the order of the file."""

    trainable: dict[str, Array] = field(default_factory=dict)
    """The parameters that require a gradient; in a nominal checkpoint their arrays are empty."""
    frozen: dict[str, Array] = field(default_factory=dict)
    """The parameters that do not, such as running statistics."""
    nominal: bool = False
    """True if the file has no values, only names."""
    groups: dict[str, OptimizerGroup] = field(default_factory=dict)
    """The state of the optimizer: one group named `GROUP`, or none."""
    properties: dict[str, Property] = field(default_factory=dict)
    """The user's own values: int (64 bits), float (32 bits) or str."""


def read_checkpoint(path: str | bytes | os.PathLike[str]) -> Checkpoint:
    """Reads a checkpoint file, and its data file if it has one.

    Raises:
        OrtTrainingError: The file cannot be read, is truncated or of another format or version.
    """
    file = Path(os.fsdecode(path))
    try:
        content = file.read_bytes()
        values = flatbuffer.read(content, CHECKPOINT, _IDENTIFIER)
        with contextlib.ExitStack() as stack:
            module = values.get("module_state", {})
            data = None
            if module.get("has_external_data"):
                data = stack.enter_context(_data_path(file).open("rb"))
            size = len(content) + (0 if data is None else data.seek(0, os.SEEK_END))
            reader = _TensorReader(data, size, nominal=module.get("is_nominal_state", False))
            return _checkpoint(values, reader)
    except MalformedError as error:
        raise OrtTrainingError(
            f"{file} is not a checkpoint of onnxruntime.training, or is truncated or damaged: {error}"
        ) from error
    except OSError as error:
        raise OrtTrainingError(f"{error.filename or file} cannot be read: {error.strerror or error}") from None


def write_checkpoint(checkpoint: Checkpoint, path: str | bytes | os.PathLike[str]) -> None:
    """Writes a checkpoint file atomically.

    Tensors of more than 1.8 GB together are written to ``<path>.data`` first, which is a file of its own: a
    process that is killed between the two leaves the old file beside the new data.

    Raises:
        OrtTrainingError: The file cannot be written, or a value does not fit in the format.
    """
    file = Path(os.fsdecode(path))
    arrays = [*checkpoint.trainable.values(), *checkpoint.frozen.values()]
    arrays += [a for g in checkpoint.groups.values() for moments in g.momentums.values() for a in moments.values()]
    external = sum(array.nbytes for array in arrays) > _MAX_INLINE_BYTES
    try:
        with contextlib.ExitStack() as stack:
            content = stack.enter_context(replacing(file)).open("wb")
            stack.enter_context(content)
            data = None
            if external:
                data = stack.enter_context(stack.enter_context(replacing(_data_path(file))).open("wb"))
            values = _tables(checkpoint, _TensorWriter(data, nominal=checkpoint.nominal))
            content.write(flatbuffer.write(values, CHECKPOINT, _IDENTIFIER))
    except MalformedError as error:
        raise OrtTrainingError(f"{file} cannot be written: {error}") from error
    except InputError as error:  # of `replacing`
        raise OrtTrainingError(str(error)) from error.__cause__


def _data_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.data")


class _TensorReader:
    """Makes arrays of tensors.

    Args:
        data: The data file, if the checkpoint has one.
        size: The size of both files: tensors that share bytes could take any amount of memory.
        nominal: Whether tensors have no values, whatever the file has.
    """

    def __init__(self, data: BinaryIO | None, size: int, *, nominal: bool) -> None:
        self._data = data
        self._left = size
        self._nominal = nominal

    def arrays(self, tensors: Iterable[Mapping[str, Any]]) -> dict[str, Array]:
        """Returns the arrays of tensors, each with memory of its own, by name."""
        return _by_name("tensor", ((tensor.get("name"), self._array(tensor)) for tensor in tensors))

    def _array(self, tensor: Mapping[str, Any]) -> Array:
        name, shape = tensor.get("name"), tensor.get("dims", [])
        try:
            dtype = ir.DataType(tensor.get("data_type", 0)).numpy()
        except (ValueError, TypeError):
            raise MalformedError(f"tensor {name!r} has no type of numbers") from None
        if self._nominal:
            return np.empty(0, dtype)
        size = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0:
            raise MalformedError(f"tensor {name!r} has the shape {shape}")
        raw = tensor.get("raw_data")
        if (offset := tensor.get("external_data_offset", -1)) >= 0:
            raw = self._external(offset, size)
        if raw is None or len(raw) != size:
            actual = "none" if raw is None else len(raw)
            raise MalformedError(f"tensor {name!r} has {actual} of its {size} bytes")
        if len(raw) > self._left:
            raise MalformedError(f"tensor {name!r} shares its bytes with another")
        self._left -= len(raw)
        try:
            return np.frombuffer(raw, dtype).reshape(shape).copy()
        except ValueError as error:
            raise MalformedError(
                f"tensor {name!r} has the shape {shape[:8]}, of rank {len(shape)}: {error}"
            ) from None

    def _external(self, offset: int, size: int) -> bytes | None:
        if self._data is None or offset + size > self._data.seek(0, os.SEEK_END):
            return None
        self._data.seek(offset)
        return self._data.read(size)


class _TensorWriter:
    """Makes tensors of arrays.

    Args:
        data: The data file to write to, if not into the checkpoint.
        nominal: Whether tensors have no values. They are scalars then, as in a file of `onnxruntime.training`.
    """

    def __init__(self, data: BinaryIO | None, *, nominal: bool) -> None:
        self.data = data
        self._nominal = nominal

    def tensors(self, arrays: Mapping[str, Array]) -> list[dict[str, Any]]:
        """Returns the tensors of named arrays."""
        return [self._tensor(name, np.asarray(array)) for name, array in arrays.items()]

    def _tensor(self, name: str, array: Array) -> dict[str, Any]:
        try:
            data_type = ir.DataType.from_numpy(array.dtype)
        except TypeError:
            raise MalformedError(f"tensor {name!r} is {array.dtype}, which ONNX has no type for") from None
        if data_type == ir.DataType.STRING:
            raise MalformedError(f"tensor {name!r} is {array.dtype}; expected numbers")
        if self._nominal:
            return {"name": name, "dims": [], "data_type": int(data_type), "raw_data": b""}
        values = {"name": name, "dims": list(array.shape), "data_type": int(data_type)}
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        if self.data is None:
            return {**values, "raw_data": raw}
        self.data.seek(-self.data.tell() % _ALIGNMENT, os.SEEK_CUR)
        offset = self.data.tell()
        self.data.write(raw)
        return {**values, "external_data_offset": offset}


def _checkpoint(values: Mapping[str, Any], reader: _TensorReader) -> Checkpoint:
    if (version := values.get("version", 0)) != VERSION:
        raise MalformedError(f"it has version {version} of the format; expected {VERSION}")
    module = values.get("module_state", {})
    result = Checkpoint(
        reader.arrays(module.get("requires_grad_params", [])),
        reader.arrays(module.get("frozen_params", [])),
        nominal=module.get("is_nominal_state", False),
    )
    if both := result.trainable.keys() & result.frozen.keys():
        raise MalformedError(f"parameter {min(both)!r} is both trainable and frozen")
    result.groups = _by_name(
        "group", ((g.get("group_name"), _group(g, reader)) for g in values.get("optimizer_groups", []))
    )
    bag = values.get("property_bag", {})
    properties = [
        (p.get("name"), p.get("value", type_())) for kind, type_ in _PROPERTIES.items() for p in bag.get(kind, [])
    ]
    result.properties = _by_name("property", properties)
    return result


def _group(values: Mapping[str, Any], reader: _TensorReader) -> OptimizerGroup:
    momentums = (
        (state.get("param_name"), reader.arrays(state.get("momentums", [])))
        for state in values.get("optimizer_states", [])
    )
    return OptimizerGroup(
        values.get("step", 0), values.get("initial_learning_rate", 0.0), _by_name("parameter", momentums)
    )


def _by_name(what: str, items: Iterable[tuple[str | None, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in items:
        if name is None or name in result:
            raise MalformedError(f"it has a {what} without a name" if name is None else f"two {what}s {name!r}")
        result[name] = value
    return result


def _tables(checkpoint: Checkpoint, writer: _TensorWriter) -> dict[str, Any]:
    """The tables of a checkpoint."""
    module: dict[str, Any] = {
        "requires_grad_params": writer.tensors(checkpoint.trainable),
        "frozen_params": writer.tensors(checkpoint.frozen),
    }
    values: dict[str, Any] = {"version": VERSION, "module_state": module}
    if checkpoint.groups:
        values["optimizer_groups"] = [
            {
                "group_name": name,
                "step": group.step,
                "initial_learning_rate": group.initial_learning_rate,
                "optimizer_states": [
                    {"param_name": parameter, "momentums": writer.tensors(arrays)}
                    for parameter, arrays in group.momentums.items()
                ],
            }
            for name, group in checkpoint.groups.items()
        ]
    for name, value in checkpoint.properties.items():
        kind = next((kind for kind, type_ in _PROPERTIES.items() if isinstance(value, type_)), None)
        if kind is None:
            raise MalformedError(f"property {name!r} is {type(value).__name__}; expected int, float or str")
        bag = values.setdefault("property_bag", {})
        bag.setdefault(kind, []).append({"name": name, "value": value})
    if checkpoint.nominal:
        module["is_nominal_state"] = True
    if writer.data is not None:
        module["has_external_data"] = True
    return values
