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

from bngrad.opset import reference_synchronized as reference
from bngrad.opset.op_results import Applied, Gathered, GradApplied, GradSums, Merged, Moments, Reduced
from bngrad.opset.quantities import ROWS
from bngrad.runtime import native_library
from bngrad.runtime.aligned import empty_at_cache_line
from bngrad.runtime.kernel_call import (
    ELEMENT_TYPES,
    element_type,
    float64_array,
    gathered,
    kernel,
    like,
    packed,
    pointers,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[Any]

_STATISTICS = ("X", "batch_mean", "batch_inv_std")
_GATHERED = ("X", "scale", "batch_mean", "batch_inv_std", "gathered_sums")

batch_normalization_moments = kernel(reference.batch_normalization_moments, Moments)
batch_normalization_apply = kernel(reference.batch_normalization_apply, Applied)
batch_normalization_grad_sums = kernel(
    reference.batch_normalization_grad_sums, GradSums, passed=("dY", None, *_STATISTICS)
)
batch_normalization_relu_grad_sums = kernel(
    reference.batch_normalization_relu_grad_sums,
    GradSums,
    "batch_normalization_grad_sums",
    ("dZ", "Z", *_STATISTICS),
)
batch_normalization_grad_apply = kernel(
    reference.batch_normalization_grad_apply, GradApplied, passed=("dY", None, *_GATHERED)
)
batch_normalization_relu_grad_apply = kernel(
    reference.batch_normalization_relu_grad_apply,
    GradApplied,
    "batch_normalization_grad_apply",
    ("dZ", "Z", *_GATHERED),
)


def batch_normalization_merge_moments(
    gathered_moments: ArrayLike,
    running_mean: ArrayLike,
    running_var: ArrayLike,
    epsilon: float,
    momentum: float,
    unbiased_running_var: bool,
) -> Merged:
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
    running = {"running_mean": running_mean, "running_var": running_var}
    old, old_var = like(running, tuple(ELEMENT_TYPES))
    moments = gathered("gathered_moments", gathered_moments, ROWS["moments"], old.size)
    new_mean, new_var = (np.empty(old.shape, old.dtype) for _ in range(2))
    outputs = Merged(new_mean, new_var, np.empty(old.shape), np.empty(old.shape), np.empty(()))
    native_library.call(
        "bngrad_batch_normalization_merge_moments",
        ctypes.c_int64(len(moments)),
        ctypes.c_int64(old.size),
        element_type(old.dtype),
        ctypes.c_double(epsilon),
        ctypes.c_double(momentum),
        int(unbiased_running_var),
        *pointers(moments, old, old_var, *outputs),
    )
    return outputs


def all_gather(value: ArrayLike, key: str) -> Gathered:
    """Returns the values of all ranks, [R, ...]: one rank, if no collective is set.

    Args:
        value: float64, of any shape, the same on all ranks.
        key: Names the exchange; every rank must be at the same one.
    """
    array = packed(float64_array("value", value))
    result = np.empty((collective_ranks(), *array.shape))
    size = ctypes.c_int64(array.nbytes)
    native_library.call("bngrad_all_gather", key.encode(), size, *pointers(array, result))
    return Gathered(result)


def all_reduce(partial: ArrayLike, key: str) -> Reduced:
    """Returns the sum over all ranks, in a fixed tree, in double and rounded once.

    Args:
        partial: float32 or float64, of any shape, the same on all ranks.
        key: Names the exchange; every rank must be at the same one.
    """
    (array,) = like({"partial": partial}, ("float32", "float64"))
    total = empty_at_cache_line(array.shape, array.dtype)
    count, kind = ctypes.c_int64(array.size), element_type(array.dtype)
    native_library.call("bngrad_all_reduce", key.encode(), count, kind, *pointers(array, total))
    return Reduced(total)


def collective_ranks() -> int:
    """Returns the number of ranks that the library exchanges values with, this one included.

    Raises:
        LibraryError: The library is missing or cannot be loaded.
    """
    return int(native_library.loaded().bngrad_collective_ranks())
