"""The data inputs of a model, and checks of the arrays that are fed to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bngrad.arguments import require_no_mask
from bngrad.autodiff.size_conditions import condition_text, holds, names_in
from bngrad.errors import InputError, ModelError
from bngrad.graph.name_messages import listed, unknown_name
from bngrad.opset.known_shapes import known_shape, shape_text
from bngrad.runtime.device import WEBGPU
from bngrad.runtime.device_arrays import on_device
from bngrad.training.step_info import DataInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import onnx_ir as ir
    from numpy.typing import NDArray

    from bngrad.autodiff.size_conditions import Condition
    from bngrad.runtime.device import Device
    from bngrad.runtime.device_arrays import DeviceArray
    from bngrad.training.step_info import StepInfo

    Array = NDArray[Any]


def data_input(value: ir.Value) -> DataInput:
    """Returns the metadata of a data input.

    Raises:
        ModelError: It has no type.
    """
    if value.dtype is None:
        raise ModelError(f"input {value.name!r} has no type; add it to the model")
    return DataInput(value.dtype.numpy().name, known_shape(value))


def data_inputs(model: ir.Model) -> dict[str, DataInput]:
    """Returns the inputs of a model that take data."""
    values = [value for value in model.graph.inputs if not value.is_initializer()]
    return {str(value.name): data_input(value) for value in values}


def require_data(
    data: Mapping[str, Any],
    inputs: Mapping[str, DataInput],
    conditions: Iterable[Condition],
    device: Device,
) -> dict[str, Array | DeviceArray]:
    """Returns the arrays of one batch, in the order of the inputs.

    Args:
        data: An array, or anything that NumPy converts to one, for each input; or one on the device.
        inputs: The data inputs.
        conditions: The conditions that the sizes of symbolic dimensions must fulfil.
        device: The device of the session that takes the data.

    Raises:
        InputError: An array is missing, superfluous, of another type or shape, or on another device; or inputs
            that share a symbolic dimension have different sizes, or sizes do not fulfil a condition; or one is
            not finite, on WebGPU.
    """
    if data.keys() != inputs.keys():
        require_all(data, inputs)
    arrays: dict[str, Array | DeviceArray] = {}
    for name, expected in inputs.items():
        sent = on_device(name, data[name], device)
        if sent is not None and sent.dtype != expected.dtype:
            raise InputError(f"{name!r} is {sent.dtype}; expected {expected.dtype}")
        arrays[name] = require_type(name, data[name], expected) if sent is None else sent
    sizes: dict[str, tuple[str, int]] = {}
    for name, expected in inputs.items():
        if expected.shape is None:
            continue
        shape = arrays[name].shape
        require_shape(name, shape, expected.shape)
        for symbol, size in zip(expected.shape, shape, strict=True):
            if isinstance(symbol, str) and sizes.setdefault(symbol, (name, size))[1] != size:
                first, other = sizes[symbol]
                raise InputError(
                    f"{name!r} has shape {shape_text(shape)} and {first!r} has {symbol} = {other}; expected the "
                    f"same {symbol} in {shape_text(expected.shape)}"
                )
    for condition in conditions:
        if not holds(condition, {symbol: size for symbol, (_, size) in sizes.items()}):
            actual = ", ".join(
                f"{symbol} = {sizes[symbol][1]}" for symbol in names_in(condition) if symbol in sizes
            )
            raise InputError(
                f"the data have {actual}; expected {condition_text(condition)}: for other sizes the model that "
                "was exported computes something else, or nothing"
            )
    _require_finite(arrays, device)
    return arrays


def require_data_for(
    names: Iterable[str], data: Mapping[str, Any], info: StepInfo, device: Device
) -> dict[str, Array | DeviceArray]:
    """Returns the arrays of one batch for some of the data inputs, for the evaluation graph; see `require_data`.

    Raises:
        InputError: One is missing, or there is no data input of a name; see also `require_data`.
    """
    for name in data:
        require_known(name, info.data)
    inputs = {name: info.data[name] for name in names}
    symbols = {symbol for spec in inputs.values() for symbol in spec.shape or ()}
    conditions = [
        condition for condition in info.evaluation_size_conditions if symbols.issuperset(names_in(condition))
    ]
    return require_data({name: data[name] for name in inputs if name in data}, inputs, conditions, device)


def require_all(data: Iterable[str], inputs: Iterable[str]) -> None:
    """Checks that there is data for each input and for nothing else.

    Raises:
        InputError: There is not; the message has the names.
    """
    names, expected = set(data), list(inputs)
    for name in data:
        require_known(name, expected)
    missing = [name for name in expected if name not in names]
    if missing:
        raise InputError(f"there is no data for {listed(missing)}; expected an array for {listed(expected)}")


def require_known(name: str, inputs: Iterable[str]) -> None:
    """Checks that there is a data input of a name.

    Raises:
        InputError: There is none.
    """
    expected = list(inputs)
    if name not in expected:
        raise InputError(unknown_name(name, expected, "a data input"))


def require_type(name: str, array: Any, expected: DataInput) -> Array:  # noqa: ANN401 - anything that NumPy takes
    """Returns an array of the type of an input, in row-major order.

    Raises:
        InputError: It has another type.
    """
    require_no_mask(name, array)
    result = np.asarray(array, order="C")
    if result.dtype == expected.dtype:
        return result
    dtype = np.dtype(expected.dtype)
    if dtype.kind != "V" or result.dtype != np.dtype((np.void, dtype.itemsize)):
        raise InputError(
            f"{name!r} is {result.dtype}; expected {expected.dtype}: convert it with "
            f"numpy.asarray({name}, {expected.dtype!r})"
        )
    return result.view(dtype)  # a type that NumPy lacks, from a file


def require_shape(name: str, shape: tuple[int, ...], expected: tuple[int | str | None, ...]) -> None:
    """Checks a shape against one with symbolic dimensions.

    Raises:
        InputError: The rank or a known size differs, or there is no sample.
    """
    if len(shape) != len(expected) or any(
        isinstance(want, int) and want != got for want, got in zip(expected, shape, strict=True)
    ):
        raise InputError(f"{name!r} has shape {shape_text(shape)}; expected {shape_text(expected)}")
    if 0 in shape and 0 not in expected:
        raise InputError(
            f"{name!r} has shape {shape_text(shape)}, so it is empty; expected {shape_text(expected)}"
        )


def _require_finite(arrays: Mapping[str, Array | DeviceArray], device: Device) -> None:
    """Checks that there is no infinity and no NaN for WebGPU, where a loss need not show them.

    Raises:
        InputError: There is one.
    """
    if device.kind == WEBGPU and (wrong := not_finite({name: np.asarray(a) for name, a in arrays.items()})):
        raise InputError(
            f"{wrong[0]!r} has an infinity or a NaN; expected finite numbers on {device}, where a ReLU of NaN is 0"
        )


def not_finite(arrays: Mapping[str, Array]) -> list[str]:
    """Returns the names of the arrays with an infinity or a NaN."""
    real = {name: array for name, array in arrays.items() if array.dtype.kind not in "biuOSU"}
    return [name for name, array in real.items() if not np.isfinite(array).all()]
