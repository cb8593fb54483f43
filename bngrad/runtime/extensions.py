"""The ops in Python, through onnxruntime-extensions: the same kernel, called back from ONNX Runtime.

Where no native library was built, NumPy computes. onnxruntime-extensions limits what the ops can do:

* It carries float and double only. A session with a node of float16 or bfloat16 data is refused when it is made
  ("Type 'tensor(float16)' of input parameter ... is invalid"): such models need the native provider, or the
  functions that they carry.
* Attributes arrive as text with six digits.
* An exception that leaves an op ends the process. So an op that fails logs the reason and answers NaN.
"""

from __future__ import annotations

import contextlib
import logging
import re
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime_extensions
from onnxruntime_extensions import PyCustomOpDef

from bngrad.errors import InputError, LibraryError
from bngrad.opset import reference
from bngrad.opset.functions import DOMAIN, FUNCTIONS
from bngrad.opset.reference import normalize_axes, parameter_shape
from bngrad.opset.schemas import QUANTITIES, signature
from bngrad.runtime import native, native_library

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from numpy.typing import NDArray

    Array = NDArray[Any]
    DType = np.dtype[Any]
    Outputs = tuple["_Handover", ...]

_FLOAT, _DOUBLE, _INT64 = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.int64)
_ORT_TYPES: dict[DType, int] = {
    _FLOAT: PyCustomOpDef.dt_float,
    _DOUBLE: PyCustomOpDef.dt_double,
    _INT64: PyCustomOpDef.dt_int64,
}
_ATTRIBUTE_TYPES = {"int": PyCustomOpDef.dt_int64, "float": PyCustomOpDef.dt_float}

TYPES: list[dict[str, DType]] = [
    {"T": data, "T1": parameter, "T2": statistic, "tensor(int64)": _INT64}
    for data in (_FLOAT, _DOUBLE)
    for parameter in {_FLOAT, data}
    for statistic in {_FLOAT, data}
]
"""The types that the extension carries. float16 and bfloat16 need the native provider."""

_log = logging.getLogger(__name__)


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
        for inputs, outputs in _variants(name):
            onnxruntime_extensions.onnx_op(
                op_type=f"{DOMAIN}::{name}",
                inputs=[_ORT_TYPES[dtype] for dtype in inputs],
                outputs=[_ORT_TYPES[dtype] for dtype in outputs],
                attrs={attribute: _ATTRIBUTE_TYPES[kind] for attribute, kind in signature(name)[2].items()},
            )(_body(name, compute, outputs))


def _variants(name: str) -> list[tuple[Sequence[DType], Sequence[DType]]]:
    """The types of an op's inputs and outputs, each combination once."""
    inputs, outputs, _ = signature(name)
    variants: dict[tuple[DType, ...], tuple[DType, ...]] = {}
    for types in TYPES:
        # With no input of its type, a statistic has the type that the op computes in.
        own = (
            dict(types)
            if any(QUANTITIES[i].type_constraint == "T2" for i in inputs)
            else types | {"T2": types["T"]}
        )
        key = tuple(own[QUANTITIES[i].type_constraint] for i in inputs)
        variants[key] = tuple(own[QUANTITIES[o].type_constraint] for o in outputs)
    return list(variants.items())


def _implementation() -> ModuleType:
    """The native kernels, or NumPy where they were not built."""
    try:
        native_library.library_path()
    except LibraryError:
        return reference
    native_library.version()  # loads the library: one that cannot be used is an error, not a reason for NumPy
    return native


def _function_name(op_type: str) -> str:
    """BatchNormalizationGrad -> batch_normalization_grad."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", op_type).lower()


def _body(name: str, compute: Callable[..., tuple[Array, ...]], dtypes: Sequence[DType]) -> Callable[..., Outputs]:
    _, outputs, _ = signature(name)

    def body(*inputs: Array, **attributes: float) -> Outputs:
        # The text "1e-05" is the attribute's float32 value, not the nearest double.
        exact = {a: float(np.float32(v)) if isinstance(v, float) else v for a, v in attributes.items()}
        try:
            results = compute(*inputs, **exact)
        except Exception as error:  # noqa: BLE001 - whatever leaves this function ends the process
            _log.error("bngrad.%s: %s; its outputs are NaN", name, error)
            results = _nan(name, outputs, inputs)
        return tuple(_Handover(np.asarray(r, dtype)) for r, dtype in zip(results, dtypes, strict=True))

    return body


def _nan(name: str, outputs: Sequence[str], inputs: Sequence[Array]) -> tuple[Array, ...]:
    """Outputs that nobody takes for an answer, since onnxruntime-extensions cannot report an error."""
    given = dict(zip(signature(name)[0], inputs, strict=True))
    data = given["X"].shape
    parameter: tuple[int, ...] = ()
    if "scale" in given:
        parameter = given["scale"].shape
    else:
        with contextlib.suppress(InputError):  # wrong axes leave no shape to be right
            parameter = parameter_shape(data, normalize_axes(given["axes"], len(data)))
    return tuple(np.full(data if QUANTITIES[o].shape == "data" else parameter, np.nan) for o in outputs)


class _Handover:
    """An output that onnxruntime-extensions takes without a copy.

    The extension asks each output for ``.shape`` and ``.flatten().tolist()``, and then copies that list into a
    tensor, one Python float after the other: 30 times the cost of the op. What it does with the list works as well
    with any buffer, so this hands it the flat array instead.
    """

    def __init__(self, array: Array) -> None:
        self._array = np.ascontiguousarray(array)
        self.shape = array.shape

    def flatten(self) -> _Handover:
        """Returns itself; the array is contiguous."""
        return self

    def tolist(self) -> Array:
        """Returns the flat array, not a list."""
        return self._array.reshape(-1)
