"""The inputs of a call: arrays or OrtValues, checked against the inputs of a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
from onnxruntime import OrtValue

from bngrad.ort_training.api.stateful_session import value_of
from bngrad.ort_training.errors import OrtTrainingAttributeError, OrtTrainingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.ort_training.checkpoint_file import Array


def feeds_of(inputs: Sequence[ir.Value], arguments: Sequence[Array | OrtValue]) -> dict[str, OrtValue | Array]:
    """Returns the values given for inputs, by name: OrtValues, but arrays of strings as they are.

    Args:
        inputs: The inputs of the graph.
        arguments: A NumPy array or an OrtValue for each; if one is a NumPy array, also what NumPy converts to one.

    Raises:
        OrtTrainingAttributeError: One is neither, and no argument is a NumPy array.
        OrtTrainingError: Their number, a dtype or a shape differs from the graph's. A symbolic dimension must be
            the same wherever it occurs: ONNX Runtime does not check that.
    """
    names = [str(value.name) for value in inputs]
    if len(arguments) != len(names):
        raise OrtTrainingError(f"{len(arguments)} inputs are given; expected {len(names)}: {', '.join(names)}")
    has_array = any(isinstance(array, np.ndarray) for array in arguments)
    feeds: dict[str, OrtValue | Array] = {}
    sizes: dict[str, int] = {}
    for value, name, argument in zip(inputs, names, arguments, strict=True):
        if not isinstance(argument, OrtValue | np.ndarray) and not has_array:
            raise OrtTrainingAttributeError(
                f"input {name!r} is a {type(argument).__name__}; expected a NumPy array or an OrtValue"
            )
        array = argument if isinstance(argument, OrtValue) else np.asarray(argument)
        if isinstance(array, OrtValue):
            feeds[name] = array
        elif value.dtype == ir.DataType.STRING:
            if array.dtype.kind not in "UO":
                raise OrtTrainingError(f"input {name!r} is {array.dtype}; expected strings")
            feeds[name] = array
        else:
            if value.dtype is not None and array.dtype != (dtype := value.dtype.numpy()):
                raise OrtTrainingError(f"input {name!r} is {array.dtype}; expected {dtype}")
            feeds[name] = value_of(name, np.require(array, requirements="C"))
        if value.shape is not None:
            shape = array.shape() if isinstance(array, OrtValue) else array.shape
            _check_shape(name, value.shape, shape, sizes)
    return feeds


def _check_shape(name: str, expected: ir.Shape, shape: Sequence[int], sizes: dict[str, int]) -> None:
    """Compares a shape with that of the graph; ``sizes`` are those of the symbolic dimensions so far."""
    fits = len(shape) == len(expected)
    for size, dimension in zip(shape, expected, strict=False):
        if isinstance(dimension, int):
            fits &= size == dimension
        elif dimension.value is not None:
            fits &= sizes.setdefault(dimension.value, size) == size
    if not fits:
        bindings = [f"{symbol} = {size}" for symbol, size in sizes.items() if symbol in map(str, expected)]
        where = f" with {', '.join(bindings)}" if bindings else ""
        raise OrtTrainingError(f"input {name!r} has shape {list(shape)}; expected {_text(expected)}{where}")


def _text(shape: ir.Shape) -> str:
    return f"[{', '.join('?' if str(dimension) == 'None' else str(dimension) for dimension in shape)}]"
