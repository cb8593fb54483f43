"""The native library for Python: NumPy arrays in and out of its C ABI.

The functions are those of `reference`, with the same arguments, but they compute as the custom ops do: in float64
if X is float64, in float32 if it is float32, float16 or bfloat16 (of the package ml_dtypes). Every array of X's
shape must have X's dtype. Scale, bias and their gradients share one dtype, X's or float32, and so do all of the
statistics. An array that is not contiguous is copied.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from bngrad.errors import InputError
from bngrad.opset.reference import normalize_axes, parameter_shape
from bngrad.runtime.aligned import empty_at_cache_line
from bngrad.runtime.native_library import Layout, call

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[Any]

_FLOAT32 = np.dtype(np.float32)
# By name: ml_dtypes, which adds bfloat16 to NumPy, is loaded by whoever has such an array, not by us.
_ELEMENT_TYPES = {"float32": 1, "float16": 10, "float64": 11, "bfloat16": 16}


def batch_normalization_grad(
    dY: ArrayLike,
    X: ArrayLike,
    scale: ArrayLike,
    mean: ArrayLike,
    inv_std: ArrayLike,
    axes: ArrayLike,
    training_mode: bool,
    *,
    num_threads: int = 0,
) -> tuple[Array, Array, Array]:
    """The gradient of Y = scale * (X - mean) * inv_std + bias.

    Args:
        dY: Gradient of the loss by Y, the shape of X.
        X: The forward input, rank 1 to 8.
        scale: The shape of X without ``axes``, as are ``mean`` and ``inv_std``.
        mean: The mean that the forward pass subtracted.
        inv_std: 1 / sqrt(variance + epsilon), as the forward pass multiplied by.
        axes: The reduction axes, in any order, negative from the end.
        training_mode: Whether mean and inv_std were computed from X (else they are constants: frozen).
        num_threads: The most threads to use; 0 for one per CPU that the process may use (affinity, container
            quota). Results have the same bits for every number.

    Returns:
        dX like X; dscale and dbias like scale. An empty reduction has sums of zero.

    Raises:
        InputError: Shapes or dtypes that do not belong together, or bad axes.
        LibraryError: The library is missing, cannot be loaded, or failed.
    """
    problem = _Problem(X, axes)
    inputs = [problem.like_x("dY", dY), problem.x, *problem.scales(scale=scale)]
    inputs += problem.statistics(mean=mean, inv_std=inv_std)
    outputs = (problem.new_data(), problem.new_scale(), problem.new_scale())
    problem.run("bngrad_batch_normalization_grad", [int(training_mode)], inputs, outputs, num_threads)
    return outputs


def batch_normalization_relu_grad(
    dZ: ArrayLike,
    Z: ArrayLike,
    X: ArrayLike,
    scale: ArrayLike,
    mean: ArrayLike,
    inv_std: ArrayLike,
    axes: ArrayLike,
    training_mode: bool,
    *,
    num_threads: int = 0,
) -> tuple[Array, Array, Array]:
    """The gradient of Z = relu(Y), Y a batch normalization of X: dY = dZ where Z > 0, else 0.

    Args:
        dZ: Gradient of the loss by Z, the shape of X.
        Z: The output of the ReLU, the shape of X.
        X: As the other arguments, see `batch_normalization_grad`.
        scale: See there.
        mean: See there.
        inv_std: See there.
        axes: See there.
        training_mode: See there.
        num_threads: See there.

    Returns:
        dX, dscale and dbias, as there.

    Raises:
        InputError: Shapes or dtypes that do not belong together, or bad axes.
        LibraryError: The library is missing, cannot be loaded, or failed.
    """
    problem = _Problem(X, axes)
    inputs = [problem.like_x("dZ", dZ), problem.like_x("Z", Z), problem.x, *problem.scales(scale=scale)]
    inputs += problem.statistics(mean=mean, inv_std=inv_std)
    outputs = (problem.new_data(), problem.new_scale(), problem.new_scale())
    problem.run("bngrad_batch_normalization_relu_grad", [int(training_mode)], inputs, outputs, num_threads)
    return outputs


def batch_normalization_grad_grad(
    ddX: ArrayLike,
    ddscale: ArrayLike,
    ddbias: ArrayLike,
    dY: ArrayLike,
    X: ArrayLike,
    scale: ArrayLike,
    mean: ArrayLike,
    inv_std: ArrayLike,
    axes: ArrayLike,
    training_mode: bool,
    *,
    num_threads: int = 0,
) -> tuple[Array, Array, Array]:
    """The gradient of `batch_normalization_grad`, for a loss of dX, dscale and dbias.

    Args:
        ddX: Gradient of the loss by dX, the shape of X.
        ddscale: Gradient of the loss by dscale, the shape and dtype of scale.
        ddbias: Gradient of the loss by dbias, the shape and dtype of scale.
        dY: As the other arguments, see `batch_normalization_grad`.
        X: See there.
        scale: See there.
        mean: See there.
        inv_std: See there.
        axes: See there.
        training_mode: See there.
        num_threads: See there.

    Returns:
        d_dY and d_X like X; d_scale like scale, zero for an empty reduction.

    Raises:
        InputError: Shapes or dtypes that do not belong together, or bad axes.
        LibraryError: The library is missing, cannot be loaded, or failed.
    """
    problem = _Problem(X, axes)
    scale_, ddscale_, ddbias_ = problem.scales(scale=scale, ddscale=ddscale, ddbias=ddbias)
    inputs = [problem.like_x("ddX", ddX), ddscale_, ddbias_, problem.like_x("dY", dY), problem.x, scale_]
    inputs += problem.statistics(mean=mean, inv_std=inv_std)
    outputs = (problem.new_data(), problem.new_data(), problem.new_scale())
    problem.run("bngrad_batch_normalization_grad_grad", [int(training_mode)], inputs, outputs, num_threads)
    return outputs


def batch_normalization_training(
    X: ArrayLike,
    scale: ArrayLike,
    bias: ArrayLike,
    running_mean: ArrayLike,
    running_var: ArrayLike,
    axes: ArrayLike,
    epsilon: float,
    momentum: float,
    unbiased_running_var: bool,
    *,
    num_threads: int = 0,
) -> tuple[Array, Array, Array, Array, Array]:
    """The forward pass with the batch's own statistics.

    Args:
        X: Rank 1 to 8.
        scale: The shape of X without ``axes``, as all other parameters.
        bias: Added after scaling.
        running_mean: The running mean before this step.
        running_var: The running variance before this step.
        axes: The reduction axes, in any order, negative from the end.
        epsilon: Added to the variance; not negative.
        momentum: The weight of the *old* running value, ONNX's convention.
        unbiased_running_var: Whether the running variance takes Bessel's correction.
        num_threads: The most threads to use; 0 for one per CPU that the process may use (affinity, container
            quota). Results have the same bits for every number.

    Returns:
        Y like X; new_running_mean, new_running_var, saved_mean and saved_inv_std like running_mean. An empty
        reduction has statistics of NaN.

    Raises:
        InputError: Shapes or dtypes that do not belong together, bad axes, a bad epsilon or momentum.
        LibraryError: The library is missing, cannot be loaded, or failed.
    """
    problem = _Problem(X, axes)
    inputs = [problem.x, *problem.scales(scale=scale, bias=bias)]
    inputs += problem.statistics(running_mean=running_mean, running_var=running_var)
    new = problem.new_statistic
    outputs = (problem.new_data(), new(), new(), new(), new())
    attributes = [ctypes.c_double(epsilon), ctypes.c_double(momentum), int(unbiased_running_var)]
    problem.run("bngrad_batch_normalization_training", attributes, inputs, outputs, num_threads)
    return outputs


def batch_normalization_statistics(
    X: ArrayLike, axes: ArrayLike, epsilon: float, *, num_threads: int = 0
) -> tuple[Array, Array]:
    """The batch's mean and 1 / sqrt(biased variance + epsilon).

    Args:
        X: Rank 1 to 8.
        axes: The reduction axes, in any order, negative from the end.
        epsilon: Added to the variance; not negative.
        num_threads: The most threads to use; 0 for one per CPU that the process may use (affinity, container
            quota). Results have the same bits for every number.

    Returns:
        mean and inv_std with the shape of X without ``axes``: float64 if X is, else float32. An empty reduction
        has NaN for both.

    Raises:
        InputError: X or the axes or epsilon are not what the op takes.
        LibraryError: The library is missing, cannot be loaded, or failed.
    """
    problem = _Problem(X, axes)
    outputs = (problem.new_statistic(), problem.new_statistic())
    attributes = [ctypes.c_double(epsilon)]
    problem.run("bngrad_batch_normalization_statistics", attributes, [problem.x], outputs, num_threads)
    return outputs


class _Problem:
    """X and its axes: checks the arrays that come with them, makes those that go out."""

    def __init__(self, X: ArrayLike, axes: ArrayLike) -> None:
        x = np.asarray(X)
        if _element_type(x.dtype) is None:
            raise InputError(f"X has dtype {x.dtype}; expected float32, float64, float16 or bfloat16")
        self._axes = normalize_axes(axes, x.ndim)
        self.x = _packed(x)
        self._parameter_shape = parameter_shape(x.shape, self._axes)
        # Until an input says otherwise, the type that the op computes in.
        self._scale_dtype = self._statistic_dtype = x.dtype if x.dtype == np.float64 else _FLOAT32

    def like_x(self, name: str, value: ArrayLike) -> Array:
        array = np.asarray(value)
        if array.dtype != self.x.dtype:
            raise InputError(f"{name} has dtype {array.dtype}; expected {self.x.dtype}, that of X")
        return _contiguous(name, array, self.x.shape, "the shape of X")

    def scales(self, **given: ArrayLike) -> list[Array]:
        """Scale and its like, by name."""
        arrays = self._parameters(given)
        self._scale_dtype = arrays[0].dtype
        return arrays

    def statistics(self, **given: ArrayLike) -> list[Array]:
        """Mean and its like, by name."""
        arrays = self._parameters(given)
        self._statistic_dtype = arrays[0].dtype
        return arrays

    def new_data(self) -> Array:
        return empty_at_cache_line(self.x.shape, self.x.dtype)

    def new_scale(self) -> Array:
        return np.empty(self._parameter_shape, self._scale_dtype)

    def new_statistic(self) -> Array:
        return np.empty(self._parameter_shape, self._statistic_dtype)

    def run(
        self,
        function: str,
        attributes: Sequence[Any],
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        num_threads: int,
    ) -> None:
        rank, axes_count = self.x.ndim, len(self._axes)
        dims = (ctypes.c_int64 * rank)(*self.x.shape)
        axes = (ctypes.c_int64 * axes_count)(*self._axes)
        types = map(_element_type, (self.x.dtype, self._scale_dtype, self._statistic_dtype))
        layout = Layout(dims, axes, rank, axes_count, *types)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (*inputs, *outputs)]
        call(function, ctypes.byref(layout), *attributes, *pointers, num_threads)

    def _parameters(self, given: Mapping[str, ArrayLike]) -> list[Array]:
        """Arrays of one value a channel: the first has X's dtype or float32, the others that of the first."""
        arrays = {name: np.asarray(value) for name, value in given.items()}
        first, *others = arrays
        dtype = arrays[first].dtype
        if dtype not in (self.x.dtype, _FLOAT32):
            expected = "float32" if self.x.dtype == _FLOAT32 else f"float32 or {self.x.dtype}"
            raise InputError(f"{first} has dtype {dtype}; expected {expected}, X being {self.x.dtype}")
        for name in others:
            if arrays[name].dtype != dtype:
                raise InputError(f"{name} has dtype {arrays[name].dtype}; expected {dtype}, that of {first}")
        why = f"X's shape {list(self.x.shape)} without axes {list(self._axes)}"
        return [_contiguous(name, array, self._parameter_shape, why) for name, array in arrays.items()]


@cache  # a dtype's name takes NumPy a microsecond to make
def _element_type(dtype: np.dtype[Any]) -> int | None:
    """The C ABI's number of a type; None if it has none."""
    return _ELEMENT_TYPES.get(dtype.name) if dtype.isnative else None


def _contiguous(name: str, array: Array, shape: tuple[int, ...], why: str) -> Array:
    if array.shape != shape:
        raise InputError(f"{name} has shape {list(array.shape)}; expected {list(shape)}: {why}")
    return _packed(array)


def _packed(array: Array) -> Array:
    """The array, or a copy if its elements do not lie as C has them."""
    if array.flags.c_contiguous and array.flags.aligned:  # np.require takes longer than a small op to see that
        return array
    return np.require(array, requirements=["C_CONTIGUOUS", "ALIGNED"])
