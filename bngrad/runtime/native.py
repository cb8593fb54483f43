"""The native kernels for NumPy arrays, through the library's C ABI.

The functions have the signatures of `bngrad.opset.reference`, but compute as the custom ops do: in float64 if X is
float64, and in float32 if X is float32, float16 or bfloat16 (from the package ml_dtypes). Arrays with X's shape
must have X's dtype. Scale, bias and their gradients share one dtype, X's or float32; so do all statistics. Arrays
that are not contiguous are copied.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from bngrad.errors import InputError
from bngrad.opset.quantities import COEFFICIENTS
from bngrad.runtime import native_library
from bngrad.runtime.aligned import empty_at_cache_line
from bngrad.runtime.kernel_call import FLOAT32, KernelCall, contiguous, element_type, pointers
from bngrad.runtime.native_synchronized import (
    all_gather,
    all_reduce,
    batch_normalization_apply,
    batch_normalization_grad_apply,
    batch_normalization_grad_sums,
    batch_normalization_merge_moments,
    batch_normalization_moments,
    batch_normalization_relu_grad_apply,
    batch_normalization_relu_grad_sums,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[Any]


__all__ = [
    "adam_update",
    "all_gather",
    "all_reduce",
    "batch_normalization_apply",
    "batch_normalization_grad",
    "batch_normalization_grad_apply",
    "batch_normalization_grad_grad",
    "batch_normalization_grad_sums",
    "batch_normalization_merge_moments",
    "batch_normalization_moments",
    "batch_normalization_relu_grad",
    "batch_normalization_relu_grad_apply",
    "batch_normalization_relu_grad_sums",
    "batch_normalization_statistics",
    "batch_normalization_training",
]


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
    """Returns the gradients of Y = scale * (X - mean) * inv_std + bias.

    Args:
        dY: Gradient of the loss with respect to Y, with X's shape.
        X: Input of the forward pass, rank 1 to 8.
        scale: Scale of the forward pass, with X's shape without ``axes``; the same for ``mean`` and ``inv_std``.
        mean: The mean that the forward pass subtracted.
        inv_std: 1 / sqrt(variance + epsilon), the factor of the forward pass.
        axes: The reduction axes, in any order; negative axes count from the end.
        training_mode: Whether mean and inv_std are functions of X; if not, they are constants (frozen statistics).
        num_threads: Maximum number of threads; 0 for one per CPU available to the process (affinity, container
            quota). The results are bit-identical for any number.

    Returns:
        dX with the shape and dtype of X; dscale and dbias with those of scale, zero for an empty reduction.

    Raises:
        InputError: Shapes or dtypes do not match, or axes are invalid.
        LibraryError: The library is missing, cannot be loaded, or failed.
    """
    call = KernelCall(X, axes)
    inputs = [call.like_x("dY", dY), call.x, *call.scales(scale=scale)]
    inputs += call.statistics(mean=mean, inv_std=inv_std)
    outputs = (call.new_data(), call.new_scale(), call.new_scale())
    call.run("bngrad_batch_normalization_grad", [int(training_mode)], inputs, outputs, num_threads)
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
    """Returns the gradients of Z = relu(Y), where Y is the batch normalization of X: dY = dZ if Z > 0, else 0.

    Args:
        dZ: Gradient of the loss with respect to Z, with X's shape.
        Z: Output of the ReLU, with X's shape.
        X: See `batch_normalization_grad`, also for the other arguments.
        scale: See `batch_normalization_grad`.
        mean: See `batch_normalization_grad`.
        inv_std: See `batch_normalization_grad`.
        axes: See `batch_normalization_grad`.
        training_mode: See `batch_normalization_grad`.
        num_threads: See `batch_normalization_grad`.

    Returns:
        dX, dscale and dbias, as `batch_normalization_grad` does.

    Raises:
        InputError: Shapes or dtypes do not match, or axes are invalid.
        LibraryError: The library is missing, cannot be loaded, or failed.
    """
    call = KernelCall(X, axes)
    inputs = [call.like_x("dZ", dZ), call.like_x("Z", Z), call.x, *call.scales(scale=scale)]
    inputs += call.statistics(mean=mean, inv_std=inv_std)
    outputs = (call.new_data(), call.new_scale(), call.new_scale())
    call.run("bngrad_batch_normalization_relu_grad", [int(training_mode)], inputs, outputs, num_threads)
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
    """Returns the gradients of `batch_normalization_grad`, for a loss that depends on dX, dscale and dbias.

    Args:
        ddX: Gradient of the loss with respect to dX, with X's shape.
        ddscale: Gradient of the loss with respect to dscale, with scale's shape and dtype.
        ddbias: Gradient of the loss with respect to dbias, with scale's shape and dtype.
        dY: See `batch_normalization_grad`, also for the other arguments.
        X: See `batch_normalization_grad`.
        scale: See `batch_normalization_grad`.
        mean: See `batch_normalization_grad`.
        inv_std: See `batch_normalization_grad`.
        axes: See `batch_normalization_grad`.
        training_mode: See `batch_normalization_grad`.
        num_threads: See `batch_normalization_grad`.

    Returns:
        d_dY and d_X with the shape and dtype of X; d_scale with those of scale, zero for an empty reduction.

    Raises:
        InputError: Shapes or dtypes do not match, or axes are invalid.
        LibraryError: The library is missing, cannot be loaded, or failed.
    """
    call = KernelCall(X, axes)
    scale_, ddscale_, ddbias_ = call.scales(scale=scale, ddscale=ddscale, ddbias=ddbias)
    inputs = [call.like_x("ddX", ddX), ddscale_, ddbias_, call.like_x("dY", dY), call.x, scale_]
    inputs += call.statistics(mean=mean, inv_std=inv_std)
    outputs = (call.new_data(), call.new_data(), call.new_scale())
    call.run("bngrad_batch_normalization_grad_grad", [int(training_mode)], inputs, outputs, num_threads)
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
    """Returns the forward pass with the statistics of the batch.

    Args:
        X: Input, rank 1 to 8.
        scale: With X's shape without ``axes``; the same for all other parameters.
        bias: Added after scaling.
        running_mean: The running mean before this step.
        running_var: The running variance before this step.
        axes: The reduction axes, in any order; negative axes count from the end.
        epsilon: Added to the variance; not negative.
        momentum: Weight of the *old* running value, as in ONNX.
        unbiased_running_var: Whether to apply Bessel's correction to the running variance.
        num_threads: Maximum number of threads; 0 for one per CPU available to the process (affinity, container
            quota). The results are bit-identical for any number.

    Returns:
        Y with the shape and dtype of X; new_running_mean, new_running_var, saved_mean and saved_inv_std with those
        of running_mean. The statistics of an empty reduction are NaN.

    Raises:
        InputError: Shapes or dtypes do not match, or axes, epsilon or momentum are invalid.
        LibraryError: The library is missing, cannot be loaded, or failed.
    """
    call = KernelCall(X, axes)
    inputs = [call.x, *call.scales(scale=scale, bias=bias)]
    inputs += call.statistics(running_mean=running_mean, running_var=running_var)
    new = call.new_statistic
    outputs = (call.new_data(), new(), new(), new(), new())
    attributes = [ctypes.c_double(epsilon), ctypes.c_double(momentum), int(unbiased_running_var)]
    call.run("bngrad_batch_normalization_training", attributes, inputs, outputs, num_threads)
    return outputs


def batch_normalization_statistics(
    X: ArrayLike, axes: ArrayLike, epsilon: float, *, num_threads: int = 0
) -> tuple[Array, Array]:
    """Returns the mean of the batch and 1 / sqrt(biased variance + epsilon).

    Args:
        X: Input, rank 1 to 8.
        axes: The reduction axes, in any order; negative axes count from the end.
        epsilon: Added to the variance; not negative.
        num_threads: Maximum number of threads; 0 for one per CPU available to the process (affinity, container
            quota). The results are bit-identical for any number.

    Returns:
        mean and inv_std with X's shape without ``axes``: float64 if X is float64, else float32. Both are NaN for
        an empty reduction.

    Raises:
        InputError: X, axes or epsilon are invalid.
        LibraryError: The library is missing, cannot be loaded, or failed.
    """
    call = KernelCall(X, axes)
    outputs = (call.new_statistic(), call.new_statistic())
    attributes = [ctypes.c_double(epsilon)]
    call.run("bngrad_batch_normalization_statistics", attributes, [call.x], outputs, num_threads)
    return outputs


def adam_update(
    weight: ArrayLike,
    gradient: ArrayLike,
    exp_avg: ArrayLike,
    exp_avg_sq: ArrayLike,
    coefficients: ArrayLike,
    *,
    num_threads: int = 0,
) -> tuple[Array, Array, Array]:
    """Returns a weight and its moving averages after a step of Adam or AdamW; see `bngrad.opset.reference`.

    Args:
        weight: float32 or float64, of any shape.
        gradient: With weight's shape and dtype.
        exp_avg: With weight's shape and dtype.
        exp_avg_sq: With weight's shape and dtype.
        coefficients: 9 numbers, which are rounded to weight's dtype.
        num_threads: Maximum number of threads; 0 for one per CPU available to the process (affinity, container
            quota). The results are bit-identical for any number.

    Returns:
        The new weight, exp_avg and exp_avg_sq, with weight's shape and dtype.

    Raises:
        InputError: Shapes or dtypes do not match.
        LibraryError: The library is missing, cannot be loaded, or failed.
    """
    w = np.asarray(weight)
    if w.dtype not in (FLOAT32, np.float64) or not w.dtype.isnative:
        raise InputError(f"weight has dtype {w.dtype}; expected float32 or float64")
    inputs = []
    arrays = {"weight": w, "gradient": gradient, "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
    for name, value in arrays.items():
        array = np.asarray(value)
        if array.dtype != w.dtype:
            raise InputError(f"{name} has dtype {array.dtype}; expected {w.dtype}, the dtype of weight")
        inputs.append(contiguous(name, array, w.shape, "the shape of weight"))
    numbers = contiguous("coefficients", np.asarray(coefficients, np.float64), (COEFFICIENTS,), "their number")
    new_weight, new_exp_avg, new_exp_avg_sq = (empty_at_cache_line(w.shape, w.dtype) for _ in range(3))
    outputs = (new_weight, new_exp_avg, new_exp_avg_sq)
    count, kind = ctypes.c_int64(w.size), element_type(w.dtype)
    arrays_ = pointers(numbers, *inputs, *outputs)
    native_library.call("bngrad_adam_update", count, kind, *arrays_, num_threads)
    return outputs
