"""Arrays as values of ONNX Runtime and back, also of types that it does not give to NumPy.

Values on the memory of an array need no copy; `Buffer` has memory of a device.
"""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from bngrad.errors import VersionError
from bngrad.runtime.aligned import empty_at_cache_line
from bngrad.runtime.device import CPU

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from bngrad.runtime.device import Device

    Array = NDArray[Any]

_WITHOUT_NUMPY = {ir.DataType.BFLOAT16.numpy(): onnx.TensorProto.BFLOAT16}
"""Types of two bytes that NumPy has only by ml_dtypes."""


def to_ort_value(array: Array) -> onnxruntime.OrtValue:
    """Returns a value on the memory of an array, which must be in row-major order.

    Raises:
        VersionError: This ONNX Runtime takes no arrays of the type.
    """
    onnx_type = _WITHOUT_NUMPY.get(array.dtype)
    if onnx_type is None:
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    if not hasattr(onnxruntime.OrtValue, "ortvalue_from_numpy_with_onnx_type"):
        raise VersionError(
            f"onnxruntime {onnxruntime.__version__} takes no {array.dtype} arrays; update onnxruntime"
        )
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), onnx_type)


def to_array(value: Any) -> Array:  # noqa: ANN401 - of the public or of the internal class
    """Returns a value as an array of its own memory, on the host."""
    for dtype, onnx_type in _WITHOUT_NUMPY.items():
        if value.element_type() == onnx_type:
            shape = tuple(value.shape())
            if value.device_name().lower() != "cpu":
                host = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(shape), onnx_type)
                host.update_inplace(value)
                value = host
            content = ctypes.string_at(value.data_ptr(), math.prod(shape) * dtype.itemsize)
            return np.frombuffer(content, np.uint16).view(dtype).reshape(shape).copy()
    return np.asarray(value.numpy())


class Buffer:
    """Memory of a device for an array, at an address that stays.

    Args:
        shape: The shape of the array.
        dtype: Its type, one that NumPy has.
        device: The device.

    Attributes:
        value: The value of ONNX Runtime that has the memory.
    """

    def __init__(self, shape: Sequence[int], dtype: np.dtype[Any], device: Device) -> None:
        self._array: Array | None = None
        if device.kind == CPU:  # NumPy writes a number to an array in a tenth of ONNX Runtime's time
            self._array = empty_at_cache_line(tuple(shape), dtype)
            self.value = to_ort_value(self._array)
        else:
            self._shape, self._dtype = tuple(shape), dtype
            with device.errors():
                self.value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(
                    list(shape), dtype.type, device.kind, device.index
                )

    def write(self, array: ArrayLike) -> None:
        """Copies an array of this shape into the memory."""
        if self._array is None:
            self.value.update_inplace(np.asarray(array, self._dtype, order="C").reshape(self._shape))
        else:
            self._array[...] = array

    def read(self) -> Array:
        """Returns a copy of the array."""
        return np.array(self.value.numpy()) if self._array is None else self._array.copy()


def run_on_values(
    session: onnxruntime.InferenceSession, values: Mapping[str, onnxruntime.OrtValue]
) -> dict[str, Array]:
    """Runs a session on values, which may be on its device, and returns its outputs by name.

    Args:
        session: The session.
        values: A value for each input, and for each initializer that can be overridden.
    """
    binding = session.io_binding()
    for value in (*session.get_inputs(), *session.get_overridable_initializers()):
        binding.bind_ortvalue_input(value.name, values[value.name])
    names = [value.name for value in session.get_outputs()]
    for name in names:
        binding.bind_output(name)
    session.run_with_iobinding(binding)
    return {name: to_array(value) for name, value in zip(names, binding.get_outputs(), strict=True)}
