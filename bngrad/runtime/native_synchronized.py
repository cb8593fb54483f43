"""The native kernels of synchronized batch normalization, and the exchanges between ranks; part of `native`.

The functions have the signatures of `bngrad.opset.reference`, where the formulas are. X, dY and so on are a rank's
part of the batch, of the dtypes that `native` accepts. Statistics of the whole batch and sums are float64.

All functions raise:

* `InputError`: Shapes or dtypes do not match, or axes or attributes are invalid.
* `LibraryError`: The library is missing, cannot be loaded, or failed. In `all_gather` and `all_reduce` also: the
  ranks do not match, or one of them failed.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from bngrad.errors import InputError
from bngrad.runtime import native_library
from bngrad.runtime.aligned import empty_at_cache_line
from bngrad.runtime.kernel_call import (
    FLOAT32,
    KernelCall,
    contiguous,
    element_type,
    float64_array,
    gathered,
    pointers,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[Any]


def batch_normalization_moments(X: ArrayLike, axes: ArrayLike, *, num_threads: int = 0) -> tuple[Array]:
    """Returns the count, the mean and M2 = sum (X - mean)^2 of a rank's part of the batch, float64 [3, C].

    Args:
        X: Input, rank 1 to 8. All moments are 0 if it has no elements.
        axes: The reduction axes, in any order; negative axes count from the end.
        num_threads: Maximum number of threads; 0 for one per CPU available to the process (affinity, container
            quota). The results are bit-identical for any number.
    """
    call = KernelCall(X, axes)
    moments = np.empty((3, call.channels))
    call.run("bngrad_batch_normalization_moments", [], [call.x], [moments], num_threads)
    return (moments,)


def batch_normalization_merge_moments(
    gathered_moments: ArrayLike,
    running_mean: ArrayLike,
    running_var: ArrayLike,
    epsilon: float,
    momentum: float,
    unbiased_running_var: bool,
) -> tuple[Array, Array, Array, Array, Array]:
    """Returns the statistics of the whole batch, from the moments of all ranks.

    Args:
        gathered_moments: float64 [R, 3, C], of R ranks.
        running_mean: The running mean before this step, with X's shape without the axes: C elements, float32,
            float64, float16 or bfloat16.
        running_var: The running variance before this step, with the shape and dtype of running_mean.
        epsilon: Added to the variance; not negative.
        momentum: Weight of the *old* running value, as in ONNX.
        unbiased_running_var: Whether to apply Bessel's correction to the running variance.

    Returns:
        new_running_mean and new_running_var with the dtype of running_mean; batch_mean, batch_inv_std and
        batch_count, float64. The statistics of an empty batch are NaN.
    """
    old = np.asarray(running_mean)
    kind = element_type(old.dtype)
    if kind is None:
        raise InputError(f"running_mean has dtype {old.dtype}; expected float32, float64, float16 or bfloat16")
    other = np.asarray(running_var)
    if other.dtype != old.dtype:
        raise InputError(f"running_var has dtype {other.dtype}; expected {old.dtype}, the dtype of running_mean")
    moments = gathered("gathered_moments", gathered_moments, 3, old.size)
    running = [
        contiguous(name, array, old.shape, "the shape of running_mean")
        for name, array in {"running_mean": old, "running_var": other}.items()
    ]
    new_mean, new_var = (np.empty(old.shape, old.dtype) for _ in range(2))
    batch_mean, batch_inv_std, batch_count = np.empty(old.shape), np.empty(old.shape), np.empty(())
    outputs = (new_mean, new_var, batch_mean, batch_inv_std, batch_count)
    native_library.call(
        "bngrad_batch_normalization_merge_moments",
        ctypes.c_int64(len(moments)),
        ctypes.c_int64(old.size),
        kind,
        ctypes.c_double(epsilon),
        ctypes.c_double(momentum),
        int(unbiased_running_var),
        *pointers(moments, *running, *outputs),
    )
    return outputs


def batch_normalization_apply(
    X: ArrayLike,
    scale: ArrayLike,
    bias: ArrayLike,
    batch_mean: ArrayLike,
    batch_inv_std: ArrayLike,
    axes: ArrayLike,
    *,
    num_threads: int = 0,
) -> tuple[Array]:
    """Returns Y = (X - batch_mean) * batch_inv_std * scale + bias, with the shape and dtype of X.

    Args:
        X: Input, rank 1 to 8.
        scale: With X's shape without ``axes``; the same for all other parameters.
        bias: Added after scaling.
        batch_mean: The mean of the whole batch, float64.
        batch_inv_std: 1 / sqrt(variance of the whole batch + epsilon), float64.
        axes: See `batch_normalization_moments`.
        num_threads: See `batch_normalization_moments`.
    """
    call = KernelCall(X, axes)
    inputs = [call.x, *call.scales(scale=scale, bias=bias)]
    inputs += call.batch_statistics(batch_mean=batch_mean, batch_inv_std=batch_inv_std)
    outputs = (call.new_data(),)
    call.run("bngrad_batch_normalization_apply", [], inputs, outputs, num_threads)
    return outputs


def batch_normalization_grad_sums(
    dY: ArrayLike,
    X: ArrayLike,
    scale: ArrayLike,
    batch_mean: ArrayLike,
    batch_inv_std: ArrayLike,
    axes: ArrayLike,
    *,
    num_threads: int = 0,
) -> tuple[Array, Array, Array]:
    """Returns sum dY and sum dY * (X - batch_mean) over a rank's part of the batch.

    Args:
        dY: Gradient of the loss with respect to Y, with X's shape.
        X: See `batch_normalization_apply`, also for the other arguments.
        scale: See `batch_normalization_apply`; gives the dtype of dscale and dbias.
        batch_mean: See `batch_normalization_apply`.
        batch_inv_std: See `batch_normalization_apply`.
        axes: See `batch_normalization_moments`.
        num_threads: See `batch_normalization_moments`.

    Returns:
        The sums, float64 [2, C]; the rank's part of dscale and dbias, with the shape and dtype of scale.
    """
    call = KernelCall(X, axes)
    statistics = call.batch_statistics(batch_mean=batch_mean, batch_inv_std=batch_inv_std)
    return _grad_sums(call, (call.like_x("dY", dY), None), scale, statistics, num_threads)


def batch_normalization_relu_grad_sums(
    dZ: ArrayLike,
    Z: ArrayLike,
    X: ArrayLike,
    scale: ArrayLike,
    batch_mean: ArrayLike,
    batch_inv_std: ArrayLike,
    axes: ArrayLike,
    *,
    num_threads: int = 0,
) -> tuple[Array, Array, Array]:
    """Returns `batch_normalization_grad_sums` of Z = relu(Y): dY = dZ where Z > 0, else 0.

    Args:
        dZ: Gradient of the loss with respect to Z, with X's shape.
        Z: Output of the ReLU, with X's shape.
        X: See `batch_normalization_grad_sums`, also for the other arguments.
        scale: See `batch_normalization_grad_sums`.
        batch_mean: See `batch_normalization_grad_sums`.
        batch_inv_std: See `batch_normalization_grad_sums`.
        axes: See `batch_normalization_moments`.
        num_threads: See `batch_normalization_moments`.
    """
    call = KernelCall(X, axes)
    statistics = call.batch_statistics(batch_mean=batch_mean, batch_inv_std=batch_inv_std)
    return _grad_sums(call, (call.like_x("dZ", dZ), call.like_x("Z", Z)), scale, statistics, num_threads)


def batch_normalization_grad_apply(
    dY: ArrayLike,
    X: ArrayLike,
    scale: ArrayLike,
    batch_mean: ArrayLike,
    batch_inv_std: ArrayLike,
    gathered_sums: ArrayLike,
    batch_count: ArrayLike,
    axes: ArrayLike,
    *,
    num_threads: int = 0,
) -> tuple[Array]:
    """Returns dX = scale * inv_std * (dY - (dbias + xhat * dscale) / batch_count), with the sums of all ranks.

    Args:
        dY: See `batch_normalization_grad_sums`, also for the other arguments.
        X: See `batch_normalization_grad_sums`.
        scale: See `batch_normalization_grad_sums`.
        batch_mean: See `batch_normalization_grad_sums`.
        batch_inv_std: See `batch_normalization_grad_sums`.
        gathered_sums: float64 [R, 2, C], of R ranks.
        batch_count: The number of elements of each channel in the whole batch, a float64 scalar.
        axes: See `batch_normalization_moments`.
        num_threads: See `batch_normalization_moments`.

    Returns:
        dX with the shape and dtype of X.
    """
    call = KernelCall(X, axes)
    statistics = call.batch_statistics(batch_mean=batch_mean, batch_inv_std=batch_inv_std)
    gradients = (call.like_x("dY", dY), None)
    return _grad_apply(call, gradients, scale, statistics, gathered_sums, batch_count, num_threads)


def batch_normalization_relu_grad_apply(
    dZ: ArrayLike,
    Z: ArrayLike,
    X: ArrayLike,
    scale: ArrayLike,
    batch_mean: ArrayLike,
    batch_inv_std: ArrayLike,
    gathered_sums: ArrayLike,
    batch_count: ArrayLike,
    axes: ArrayLike,
    *,
    num_threads: int = 0,
) -> tuple[Array]:
    """Returns `batch_normalization_grad_apply` of Z = relu(Y): dY = dZ where Z > 0, else 0.

    Args:
        dZ: See `batch_normalization_relu_grad_sums`.
        Z: See `batch_normalization_relu_grad_sums`.
        X: See `batch_normalization_grad_apply`, also for the other arguments.
        scale: See `batch_normalization_grad_apply`.
        batch_mean: See `batch_normalization_grad_apply`.
        batch_inv_std: See `batch_normalization_grad_apply`.
        gathered_sums: See `batch_normalization_grad_apply`.
        batch_count: See `batch_normalization_grad_apply`.
        axes: See `batch_normalization_moments`.
        num_threads: See `batch_normalization_moments`.
    """
    call = KernelCall(X, axes)
    statistics = call.batch_statistics(batch_mean=batch_mean, batch_inv_std=batch_inv_std)
    gradients = (call.like_x("dZ", dZ), call.like_x("Z", Z))
    return _grad_apply(call, gradients, scale, statistics, gathered_sums, batch_count, num_threads)


def all_gather(value: ArrayLike, key: str) -> tuple[Array]:
    """Returns the values of all ranks, [R, ...]: one rank, if no collective is set.

    Args:
        value: float64, of any shape, the same on all ranks.
        key: Names the exchange; every rank must be at the same one.
    """
    array = float64_array("value", value)
    array = contiguous("value", array, array.shape, "its shape")
    result = np.empty((collective_ranks(), *array.shape))
    size = ctypes.c_int64(array.nbytes)
    native_library.call("bngrad_all_gather", key.encode(), size, *pointers(array, result))
    return (result,)


def all_reduce(partial: ArrayLike, key: str) -> tuple[Array]:
    """Returns the sum over all ranks, in a fixed tree, in double and rounded once.

    Args:
        partial: float32 or float64, of any shape, the same on all ranks.
        key: Names the exchange; every rank must be at the same one.
    """
    array = np.asarray(partial)
    if array.dtype not in (FLOAT32, np.float64) or not array.dtype.isnative:
        raise InputError(f"partial has dtype {array.dtype}; expected float32 or float64")
    array = contiguous("partial", array, array.shape, "its shape")
    total = empty_at_cache_line(array.shape, array.dtype)
    count, kind = ctypes.c_int64(array.size), element_type(array.dtype)
    native_library.call("bngrad_all_reduce", key.encode(), count, kind, *pointers(array, total))
    return (total,)


def _grad_sums(
    call: KernelCall,
    gradients: tuple[Array, Array | None],
    scale: ArrayLike,
    statistics: list[Array],
    num_threads: int,
) -> tuple[Array, Array, Array]:
    """``gradients``: dY and None, or dZ and Z."""
    call.scales(scale=scale)
    outputs = (np.empty((2, call.channels)), call.new_scale(), call.new_scale())
    inputs = [*gradients, call.x, *statistics]
    call.run("bngrad_batch_normalization_grad_sums", [], inputs, outputs, num_threads)
    return outputs


def _grad_apply(
    call: KernelCall,
    gradients: tuple[Array, Array | None],
    scale: ArrayLike,
    statistics: list[Array],
    gathered_sums: ArrayLike,
    batch_count: ArrayLike,
    num_threads: int,
) -> tuple[Array]:
    """``gradients``: dY and None, or dZ and Z."""
    sums = gathered("gathered_sums", gathered_sums, 2, call.channels)
    count = contiguous("batch_count", float64_array("batch_count", batch_count), (), "a scalar")
    attributes = [ctypes.c_int64(len(sums)), ctypes.c_double(float(count))]
    inputs = [*gradients, call.x, *call.scales(scale=scale), *statistics, sums]
    outputs = (call.new_data(),)
    call.run("bngrad_batch_normalization_grad_apply", attributes, inputs, outputs, num_threads)
    return outputs


def collective_ranks() -> int:
    """Returns the number of ranks that the library exchanges values with, this one included.

    Raises:
        LibraryError: The library is missing or cannot be loaded.
    """
    return int(native_library.loaded().bngrad_collective_ranks())
