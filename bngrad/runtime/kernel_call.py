"""Checks of the arrays of a kernel call, and the call through the C ABI."""

from __future__ import annotations

import ctypes
import math
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from bngrad.errors import InputError
from bngrad.opset.axes import normalize_axes, parameter_shape
from bngrad.runtime.aligned import empty_at_cache_line
from bngrad.runtime.native_library import Layout, call

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[Any]

FLOAT32 = np.dtype(np.float32)
# By name, so that ml_dtypes, which adds bfloat16 to NumPy, need not be imported here.
_ELEMENT_TYPES = {"float32": 1, "float16": 10, "float64": 11, "bfloat16": 16}


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
        self.x = _packed(x)
        self._parameter_shape = parameter_shape(x.shape, self._axes)
        # The type that the op computes in, unless an input sets another one.
        self._scale_dtype = self._statistic_dtype = x.dtype if x.dtype == np.float64 else FLOAT32

    def like_x(self, name: str, value: ArrayLike) -> Array:
        """Checks an input with X's shape and dtype."""
        array = np.asarray(value)
        if array.dtype != self.x.dtype:
            raise InputError(f"{name} has dtype {array.dtype}; expected {self.x.dtype}, the dtype of X")
        return contiguous(name, array, self.x.shape, "the shape of X")

    def scales(self, **values: ArrayLike) -> list[Array]:
        """Checks scale, bias and their gradients, given by name."""
        arrays = self._parameters(values)
        self._scale_dtype = arrays[0].dtype
        return arrays

    def statistics(self, **values: ArrayLike) -> list[Array]:
        """Checks means, variances and inverse standard deviations, given by name."""
        arrays = self._parameters(values)
        self._statistic_dtype = arrays[0].dtype
        return arrays

    def batch_statistics(self, **values: ArrayLike) -> list[Array]:
        """Checks statistics of the whole batch, given by name, which are float64 whatever the data."""
        return [
            contiguous(name, float64_array(name, value), self._parameter_shape, self._parameter_reason)
            for name, value in values.items()
        ]

    @property
    def channels(self) -> int:
        """The number of channels, C."""
        return math.prod(self._parameter_shape)

    def new_data(self) -> Array:
        """Allocates an output with X's shape and dtype."""
        return empty_at_cache_line(self.x.shape, self.x.dtype)

    def new_scale(self) -> Array:
        """Allocates an output with the shape and dtype of scale."""
        return np.empty(self._parameter_shape, self._scale_dtype)

    def new_statistic(self) -> Array:
        """Allocates an output with the shape and dtype of the statistics."""
        return np.empty(self._parameter_shape, self._statistic_dtype)

    def run(
        self,
        function: str,
        attributes: Sequence[Any],
        inputs: Sequence[Array | None],
        outputs: Sequence[Array],
        num_threads: int,
    ) -> None:
        """Calls a function of the library, which writes to ``outputs``. An input of None is NULL.

        Raises:
            InputError: The function rejects an attribute.
            LibraryError: The library is missing, cannot be loaded, or failed.
        """
        rank, axes_count = self.x.ndim, len(self._axes)
        dims = (ctypes.c_int64 * rank)(*self.x.shape)
        axes = (ctypes.c_int64 * axes_count)(*self._axes)
        types = map(element_type, (self.x.dtype, self._scale_dtype, self._statistic_dtype))
        layout = Layout(dims, axes, rank, axes_count, *types)
        call(function, ctypes.byref(layout), *attributes, *pointers(*inputs, *outputs), num_threads)

    def _parameters(self, values: Mapping[str, ArrayLike]) -> list[Array]:
        """Checks arrays of one value per channel: the first has X's dtype or float32, and all have one dtype."""
        arrays = {name: np.asarray(value) for name, value in values.items()}
        first, *others = arrays
        dtype = arrays[first].dtype
        if dtype not in (self.x.dtype, FLOAT32):
            expected = "float32" if self.x.dtype == FLOAT32 else f"float32 or {self.x.dtype}"
            raise InputError(f"{first} has dtype {dtype}; expected {expected}, because X is {self.x.dtype}")
        for name in others:
            if arrays[name].dtype != dtype:
                raise InputError(f"{name} has dtype {arrays[name].dtype}; expected {dtype}, the dtype of {first}")
        return [
            contiguous(name, array, self._parameter_shape, self._parameter_reason)
            for name, array in arrays.items()
        ]

    @property
    def _parameter_reason(self) -> str:
        return f"X's shape {list(self.x.shape)} without axes {list(self._axes)}"


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
    return _ELEMENT_TYPES.get(dtype.name) if dtype.isnative else None


def contiguous(name: str, array: Array, shape: tuple[int, ...], reason: str) -> Array:
    """Checks the shape of an array; returns the array, or a copy if it is not contiguous and aligned.

    Raises:
        InputError: The shape is not the expected one.
    """
    if array.shape != shape:
        raise InputError(f"{name} has shape {list(array.shape)}; expected {list(shape)}: {reason}")
    return _packed(array)


def _packed(array: Array) -> Array:
    """Returns the array, or a copy if it is not contiguous in row-major order and aligned."""
    if array.flags.c_contiguous and array.flags.aligned:  # faster than np.require for small arrays
        return array
    return np.require(array, requirements=["C_CONTIGUOUS", "ALIGNED"])
