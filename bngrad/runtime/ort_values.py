"""Arrays as values of ONNX Runtime and back, without copies, also of types that it does not give to NumPy."""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from bngrad.errors import VersionError

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
    """Returns a value as an array of its own memory."""
    for dtype, onnx_type in _WITHOUT_NUMPY.items():
        if value.element_type() == onnx_type:
            shape = tuple(value.shape())
            content = ctypes.string_at(value.data_ptr(), math.prod(shape) * dtype.itemsize)
            return np.frombuffer(content, np.uint16).view(dtype).reshape(shape).copy()
    return np.asarray(value.numpy())
