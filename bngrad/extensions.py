"""The ops in Python, through onnxruntime-extensions: the same kernel, called back from ONNX Runtime.

Where no native library was built, NumPy computes. onnxruntime-extensions carries float and double only, and
attributes as text with six digits. It has no way to report an error that an op raises (a shape that does not fit):
it prints the reason and ends the process.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime_extensions
from onnxruntime_extensions import PyCustomOpDef

from bngrad import native, reference
from bngrad.errors import LibraryError
from bngrad.opset import DOMAIN, FUNCTIONS
from bngrad.schemas import QUANTITIES, signature

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from numpy.typing import NDArray

    Outputs = tuple["_Handover", ...]

DTYPES: dict[np.dtype[Any], int] = {
    np.dtype(np.float32): PyCustomOpDef.dt_float,
    np.dtype(np.float64): PyCustomOpDef.dt_double,
}
"""The types of data that the extension carries. float16 and bfloat16 need the native provider."""

_ATTRIBUTE_TYPES = {"int": PyCustomOpDef.dt_int64, "float": PyCustomOpDef.dt_float}


def library_path() -> str:
    """Returns the path of onnxruntime-extensions' own library, which is what a session registers."""
    return str(onnxruntime_extensions.get_library_path())


@cache
def define_ops() -> None:
    """Defines every op for every type, once for the process.

    Raises:
        LibraryError: The native library is there but cannot be used.
    """
    implementation = _implementation()
    for name in FUNCTIONS:
        compute = getattr(implementation, _function_name(name))
        for dtype, ort_type in DTYPES.items():
            inputs, outputs, attributes = signature(name)
            onnxruntime_extensions.onnx_op(
                op_type=f"{DOMAIN}::{name}",
                inputs=[PyCustomOpDef.dt_int64 if QUANTITIES[i].shape == "axes" else ort_type for i in inputs],
                outputs=[ort_type] * len(outputs),
                attrs={a: _ATTRIBUTE_TYPES[kind] for a, kind in attributes.items()},
            )(_body(compute, dtype))


def _implementation() -> ModuleType:
    """The native kernels, or NumPy where they were not built."""
    try:
        native.library_path()
    except LibraryError:
        return reference
    native.version()  # loads the library: one that cannot be used is an error, not a reason for NumPy
    return native


def _function_name(op_type: str) -> str:
    """BatchNormalizationGrad -> batch_normalization_grad."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", op_type).lower()


def _body(compute: Callable[..., tuple[NDArray[Any], ...]], dtype: np.dtype[Any]) -> Callable[..., Outputs]:
    def body(*inputs: NDArray[Any], **attributes: float) -> Outputs:
        # The text "1e-05" is the attribute's float32 value, not the nearest double.
        exact = {a: float(np.float32(v)) if isinstance(v, float) else v for a, v in attributes.items()}
        return tuple(_Handover(np.asarray(output, dtype)) for output in compute(*inputs, **exact))

    return body


class _Handover:
    """An output that onnxruntime-extensions takes without a copy.

    The extension asks each output for ``.shape`` and ``.flatten().tolist()``, and then copies that list into a
    tensor, one Python float after the other: 30 times the cost of the op. What it does with the list works as well
    with any buffer, so this hands it the flat array instead.
    """

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = np.ascontiguousarray(array)
        self.shape = array.shape

    def flatten(self) -> _Handover:
        """Returns itself; the array is contiguous."""
        return self

    def tolist(self) -> NDArray[Any]:
        """Returns the flat array, not a list."""
        return self._array.reshape(-1)
