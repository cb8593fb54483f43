"""Checks of the arrays of a kernel call, and the call through the C ABI."""

from __future__ import annotations

import ctypes
import inspect
import math
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from bngrad.errors import InputError
from bngrad.opset.axes import normalize_axes, parameter_shape
from bngrad.opset.quantities import QUANTITIES, ROWS
from bngrad.runtime.aligned import empty_at_cache_line
from bngrad.runtime.native_library import Layout, call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[Any]

_Result = TypeVar("_Result", bound="tuple[Array, ...]")

FLOAT32 = np.dtype(np.float32)
# By name, so that ml_dtypes, which adds bfloat16 to NumPy, need not be imported here.
ELEMENT_TYPES = {"float32": 1, "float64": 11, "float16": 10, "bfloat16": 16}
"""The C ABI's numbers of the types, by NumPy's names."""
_ATTRIBUTES: dict[str, Callable[[Any], Any]] = {
    "training_mode": int,
    "epsilon": ctypes.c_double,
    "momentum": ctypes.c_double,
    "unbiased_running_var": int,
}
_DOC = """

The native library computes it, in the dtypes that `bngrad.runtime.native` states. ``num_threads`` is the maximum
number of threads; 0 for one per CPU available to the process (affinity, container quota). The results are
bit-identical for any number.

Raises:
    InputError: Shapes or dtypes do not match, or axes or attributes are invalid.
    LibraryError: The library is missing, cannot be loaded, or failed."""


def kernel(
    reference: Callable[..., _Result],
    outputs: Callable[..., _Result],
    function: str = "",
    passed: Sequence[str | None] = (),
) -> Callable[..., _Result]:
    """Returns the function of an op that calls its kernel, with the parameters of the op's reference.

    Args:
        reference: The function of `bngrad.opset.reference`. Its parameters are the inputs, X and axes among them,
            and the attributes of the op.
        outputs: The named tuple that it returns.
        function: The function of the C ABI, if it is not called as the op.
        passed: The arrays that the C function takes: NULL for None; all inputs but axes if empty. An input that is
            a scalar, and the number of ranks of a gathered one, go before them.
    """
    signature = inspect.signature(reference)
    names = [name for name in signature.parameters if name in QUANTITIES and name != "axes"]
    kinds = {name: QUANTITIES[name].shape for name in names}
    arrays = passed or names
    attributes = [name for name in signature.parameters if name not in QUANTITIES]
    results: tuple[str, ...] = outputs._fields  # type: ignore[attr-defined]
    c_function = f"bngrad_{function or reference.__name__}"

    def compute(*args: object, num_threads: int = 0, **kwargs: object) -> _Result:
        values = signature.bind(*args, **kwargs).arguments
        checked = KernelCall(values["X"], values["axes"])
        inputs = checked.inputs({name: values[name] for name in names})
        scalars = [_ATTRIBUTES[name](values[name]) for name in attributes]
        for name, kind in kinds.items():
            if kind == "gathered_sums":
                scalars.append(ctypes.c_int64(len(inputs[name])))
            elif kind == "scalar":
                scalars.append(ctypes.c_double(float(inputs[name])))
        result = outputs(*map(checked.new, results))
        checked.run(c_function, scalars, [inputs[name] if name else None for name in arrays], result, num_threads)
        return result

    threads = inspect.Parameter("num_threads", inspect.Parameter.KEYWORD_ONLY, default=0, annotation="int")
    explicit = signature.replace(parameters=[*signature.parameters.values(), threads])
    compute.__name__ = compute.__qualname__ = reference.__name__
    compute.__doc__ = (reference.__doc__ or "").partition("\n\nRaises:")[0] + _DOC
    compute.__signature__ = explicit  # type: ignore[attr-defined]
    return compute


class KernelCall:
    """One call of a kernel: checks the arrays that go with X and its axes, and allocates the outputs.

    Raises:
        InputError: The dtype or rank of X, or the axes, are not supported; or an array does not match X.
    """

    def __init__(self, X: ArrayLike, axes: ArrayLike) -> None:
        x = np.asarray(X)
        if element_type(x.dtype) is None:
            raise InputError(f"X has dtype {x.dtype}; expected float32, float64, float16 or bfloat16")
        self._axes = normalize_axes(axes, x.ndim)
        self._x = x
        parameter = parameter_shape(x.shape, self._axes)
        channels = math.prod(parameter)
        self._shapes = {
            "data": x.shape,
            "parameter": parameter,
            "scalar": (),
            **{kind: (rows, channels) for kind, rows in ROWS.items()},
        }
        self._reasons = {
            "data": "the shape of X",
            "parameter": f"X's shape {list(x.shape)} without axes {list(self._axes)}",
            "scalar": "a scalar",
        }
        # The type that the op computes in, unless an input sets another one.
        computed = x.dtype if x.dtype == np.float64 else FLOAT32
        self._dtypes = {"T": x.dtype, "T1": computed, "T2": computed, "tensor(double)": np.dtype(np.float64)}

    def inputs(self, values: Mapping[str, ArrayLike]) -> dict[str, Array]:
        """Checks the inputs of an op, by name.

        Inputs of the type of scale have X's dtype or float32, and all the same one; so have the statistics.
        """
        first: dict[str, str] = {}
        checked = {}
        # Other parameters have the dtype of scale.
        for name in sorted(values, key=lambda name: name != "scale"):
            constraint, kind, _ = QUANTITIES[name]
            array = np.asarray(values[name])
            if constraint in ("T1", "T2"):
                if constraint not in first:
                    self._set_dtype(name, array.dtype, constraint)
                _expect_dtype(name, array, self._dtypes[constraint], first.setdefault(constraint, name))
            elif constraint == "T":
                _expect_dtype(name, array, self._x.dtype, "X")
            else:
                float64_array(name, array)
            if kind == "gathered_sums":
                checked[name] = gathered(name, array, ROWS["sums"], self._shapes["sums"][1])
            else:
                checked[name] = contiguous(name, array, self._shapes[kind], self._reasons[kind])
        return checked

    def new(self, name: str) -> Array:
        """Allocates an output, by name."""
        constraint, kind, _ = QUANTITIES[name]
        allocate = empty_at_cache_line if kind == "data" else np.empty
        return allocate(self._shapes[kind], self._dtypes[constraint])

    def run(
        self,
        function: str,
        scalars: Sequence[Any],
        inputs: Sequence[Array | None],
        outputs: Sequence[Array],
        num_threads: int,
    ) -> None:
        """Calls a function of the library, which writes to ``outputs``. An input of None is NULL.

        Raises:
            InputError: The function rejects an attribute.
            LibraryError: The library is missing, cannot be loaded, or failed.
        """
        rank, axes_count = self._x.ndim, len(self._axes)
        dims = (ctypes.c_int64 * rank)(*self._x.shape)
        axes = (ctypes.c_int64 * axes_count)(*self._axes)
        types = (element_type(self._dtypes[constraint]) for constraint in ("T", "T1", "T2"))
        layout = Layout(dims, axes, rank, axes_count, *types)
        call(function, ctypes.byref(layout), *scalars, *pointers(*inputs, *outputs), num_threads)

    def _set_dtype(self, name: str, dtype: np.dtype[Any], constraint: str) -> None:
        if dtype not in (self._x.dtype, FLOAT32):
            expected = "float32" if self._x.dtype == FLOAT32 else f"float32 or {self._x.dtype}"
            raise InputError(f"{name} has dtype {dtype}; expected {expected}, because X is {self._x.dtype}")
        self._dtypes[constraint] = dtype


def _expect_dtype(name: str, array: Array, dtype: np.dtype[Any], owner: str) -> None:
    if array.dtype != dtype:
        raise InputError(f"{name} has dtype {array.dtype}; expected {dtype}, the dtype of {owner}")


def like(values: Mapping[str, ArrayLike], dtypes: Sequence[str]) -> list[Array]:
    """Checks arrays that have the shape and dtype of the first, without X.

    Raises:
        InputError: The dtype of the first is none of ``dtypes``, or another array does not match it.
    """
    arrays = {name: np.asarray(value) for name, value in values.items()}
    first, model = next(iter(arrays.items()))
    if model.dtype.name not in dtypes or not model.dtype.isnative:
        expected = f"{', '.join(dtypes[:-1])} or {dtypes[-1]}"
        raise InputError(f"{first} has dtype {model.dtype}; expected {expected}")
    for name, array in arrays.items():
        _expect_dtype(name, array, model.dtype, first)
    return [contiguous(name, array, model.shape, f"the shape of {first}") for name, array in arrays.items()]


def float64_array(name: str, value: ArrayLike) -> Array:
    """Checks the dtype of an array that is float64 whatever the data.

    Raises:
        InputError: The dtype is another one.
    """
    array = np.asarray(value)
    if array.dtype != np.float64 or not array.dtype.isnative:
        raise InputError(f"{name} has dtype {array.dtype}; expected float64")
    return array


def gathered(name: str, value: ArrayLike, rows: int, channels: int) -> Array:
    """Checks a float64 array of shape [R, rows, C]: of R ranks, at least one, and C channels.

    Raises:
        InputError: The dtype or the shape is another one.
    """
    array = float64_array(name, value)
    ranks = array.shape[0] if array.ndim > 0 else 0
    if ranks == 0:
        raise InputError(f"{name} has shape {list(array.shape)}; expected [R, {rows}, {channels}] with R >= 1")
    return contiguous(name, array, (ranks, rows, channels), "[R, rows, channels]")


def pointers(*arrays: Array | None) -> list[ctypes.c_void_p]:
    """Returns the addresses of arrays; NULL for None."""
    return [ctypes.c_void_p(None if array is None else array.ctypes.data) for array in arrays]


@cache  # NumPy computes a dtype's name on every access
def element_type(dtype: np.dtype[Any]) -> int | None:
    """Returns the C ABI's number of a type; None if it is not supported."""
    return ELEMENT_TYPES.get(dtype.name) if dtype.isnative else None


def contiguous(name: str, array: Array, shape: tuple[int, ...], reason: str) -> Array:
    """Checks the shape of an array; returns the array, or a copy if it is not contiguous and aligned.

    Raises:
        InputError: The shape is not the expected one.
    """
    if array.shape != shape:
        raise InputError(f"{name} has shape {list(array.shape)}; expected {list(shape)}: {reason}")
    return packed(array)


def packed(array: Array) -> Array:
    """Returns the array, or a copy if it is not contiguous in row-major order and aligned."""
    if array.flags.c_contiguous and array.flags.aligned:  # faster than np.require for small arrays
        return array
    return np.require(array, requirements=["C_CONTIGUOUS", "ALIGNED"])
