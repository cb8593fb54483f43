"""The ops in Python, as custom ops of onnxruntime-extensions: ONNX Runtime calls back into Python.

The native kernels compute the results, or NumPy if the native library was not built. Limits of
onnxruntime-extensions:

* It supports float and double only. ONNX Runtime refuses to create a session for a model with float16 or bfloat16
  data ("Type 'tensor(float16)' of input parameter ... is invalid"). Use the native implementation for such models,
  or the functions embedded in them.
* Attributes are passed as text with six digits.
* An exception in an op ends the process. An op that fails therefore logs the reason and returns NaN.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime_extensions
from onnxruntime_extensions import PyCustomOpDef

from bngrad.errors import InputError, LibraryError
from bngrad.opset import reference
from bngrad.opset.axes import normalize_axes, parameter_shape
from bngrad.opset.functions import DOMAIN, FUNCTIONS
from bngrad.opset.quantities import QUANTITIES, ROWS
from bngrad.opset.schemas import main_input, signature
from bngrad.runtime import native, native_library

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from numpy.typing import NDArray

    Array = NDArray[Any]
    DType = np.dtype[Any]
    Outputs = tuple["_NoCopyOutput", ...]

_FLOAT, _DOUBLE, _INT64 = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.int64)
_ORT_TYPES: dict[DType, int] = {
    _FLOAT: PyCustomOpDef.dt_float,
    _DOUBLE: PyCustomOpDef.dt_double,
    _INT64: PyCustomOpDef.dt_int64,
}
_ATTRIBUTE_TYPES = {
    "int": PyCustomOpDef.dt_int64,
    "float": PyCustomOpDef.dt_float,
    "string": PyCustomOpDef.dt_string,
}

TYPES: list[dict[str, DType]] = [
    {"T": data, "W": data, "T1": parameter, "T2": statistic, "tensor(int64)": _INT64, "tensor(double)": _DOUBLE}
    for data in (_FLOAT, _DOUBLE)
    for parameter in {_FLOAT, data}
    for statistic in {_FLOAT, data}
]
"""The supported combinations of types."""

_log = logging.getLogger(__name__)


def library_path() -> str:
    """Returns the path of onnxruntime-extensions' library, which has to be registered with a session."""
    return str(onnxruntime_extensions.get_library_path())


@cache
def define_ops() -> None:
    """Defines every op for every supported combination of types, once per process.

    Raises:
        LibraryError: The native library is installed but cannot be loaded.
    """
    implementation = _implementation()
    for name in FUNCTIONS:
        compute = getattr(implementation, _function_name(name))
        for inputs, outputs in _variants(name):
            onnxruntime_extensions.onnx_op(
                op_type=f"{DOMAIN}::{name}",
                inputs=[_ORT_TYPES[dtype] for dtype in inputs],
                outputs=[_ORT_TYPES[dtype] for dtype in outputs],
                attrs={attribute: _ATTRIBUTE_TYPES[kind] for attribute, kind in signature(name)[2].items()},
            )(_body(name, compute, outputs))


def _variants(name: str) -> list[tuple[Sequence[DType], Sequence[DType]]]:
    """Returns the distinct combinations of an op's input and output types."""
    inputs, outputs, _ = signature(name)
    variants: dict[tuple[DType, ...], tuple[DType, ...]] = {}
    for types in TYPES:
        # In an op without an input of type T2, the statistics have the type that the op computes in.
        own = (
            dict(types)
            if any(QUANTITIES[i].type_constraint == "T2" for i in inputs)
            else types | {"T2": types["T"]}
        )
        key = tuple(own[QUANTITIES[i].type_constraint] for i in inputs)
        variants[key] = tuple(own[QUANTITIES[o].type_constraint] for o in outputs)
    return list(variants.items())


def _implementation() -> ModuleType:
    """Returns the module with the native kernels, or the NumPy reference if they were not built."""
    try:
        native_library.library_path()
    except LibraryError:
        return reference
    native_library.version()  # loads the library: an unusable one is an error, not a reason to fall back to NumPy
    return native


def _function_name(op_type: str) -> str:
    """Converts a name: BatchNormalizationGrad -> batch_normalization_grad."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", op_type).lower()


def _body(name: str, compute: Callable[..., tuple[Array, ...]], dtypes: Sequence[DType]) -> Callable[..., Outputs]:
    _, outputs, _ = signature(name)

    def body(*inputs: Array, **attributes: float | str) -> Outputs:
        # Attributes are float32; the text "1e-05" must not become the nearest double.
        exact = {a: float(np.float32(v)) if isinstance(v, float) else v for a, v in attributes.items()}
        try:
            results = compute(*inputs, **exact)
        except Exception as error:  # noqa: BLE001 - an exception here ends the process
            _log.error("bngrad.%s: %s; its outputs are NaN", name, error)
            results = _nan(name, outputs, inputs)
        return tuple(_NoCopyOutput(np.asarray(r, dtype)) for r, dtype in zip(results, dtypes, strict=True))

    return body


def _nan(name: str, outputs: Sequence[str], inputs: Sequence[Array]) -> tuple[Array, ...]:
    """Returns outputs filled with NaN, because onnxruntime-extensions cannot report an error."""
    arrays = dict(zip(signature(name)[0], inputs, strict=True))
    data = arrays[main_input(name)].shape
    parameter: tuple[int, ...] = ()
    if "scale" in arrays:
        parameter = arrays["scale"].shape
    elif "running_mean" in arrays:
        parameter = arrays["running_mean"].shape
    elif "axes" in arrays:
        with contextlib.suppress(InputError):  # invalid axes do not define a shape
            parameter = parameter_shape(data, normalize_axes(arrays["axes"], len(data)))
    channels = math.prod(parameter)
    shapes: dict[str, tuple[int, ...]] = {
        "data": data,
        "parameter": parameter,
        "scalar": (),
        **{kind: (rows, channels) for kind, rows in ROWS.items()},
        "gathered": (1, *data),
    }
    return tuple(np.full(shapes[QUANTITIES[o].shape], np.nan) for o in outputs)


class _NoCopyOutput:
    """An output that onnxruntime-extensions reads without conversion to a Python list.

    The extension reads ``.shape`` and ``.flatten().tolist()`` of each output and copies the list into a tensor one
    Python float at a time, which is much slower than the op. The copy works with any buffer, so ``tolist`` returns
    the flat array.
    """

    def __init__(self, array: Array) -> None:
        self._array = np.ascontiguousarray(array)
        self.shape = array.shape

    def flatten(self) -> _NoCopyOutput:
        """Returns the object itself, because the array is contiguous."""
        return self

    def tolist(self) -> Array:
        """Returns the flat array instead of a list."""
        return self._array.reshape(-1)
