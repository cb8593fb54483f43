"""The native kernels for NumPy arrays, through the library's C ABI.

The functions have the signatures of `bngrad.opset.reference`, but compute as the custom ops do: in float64 if X is
float64, and in float32 if X is float32, float16 or bfloat16 (from the package ml_dtypes). Arrays with X's shape
must have X's dtype. Scale, bias and their gradients share one dtype, X's or float32; so do all statistics. Without
such an input, the statistics are float64 if X is, else float32. Arrays that are not contiguous are copied.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from bngrad.opset import reference
from bngrad.opset.op_results import Gradients, Normalized, SecondGradients, Statistics, Updated
from bngrad.opset.quantities import COEFFICIENTS
from bngrad.runtime import native_library
from bngrad.runtime.aligned import empty_at_cache_line
from bngrad.runtime.kernel_call import contiguous, element_type, kernel, like, pointers
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

batch_normalization_grad = kernel(reference.batch_normalization_grad, Gradients)
batch_normalization_relu_grad = kernel(reference.batch_normalization_relu_grad, Gradients)
batch_normalization_grad_grad = kernel(reference.batch_normalization_grad_grad, SecondGradients)
batch_normalization_training = kernel(reference.batch_normalization_training, Normalized)
batch_normalization_statistics = kernel(reference.batch_normalization_statistics, Statistics)


def adam_update(
    weight: ArrayLike,
    gradient: ArrayLike,
    exp_avg: ArrayLike,
    exp_avg_sq: ArrayLike,
    coefficients: ArrayLike,
    *,
    num_threads: int = 0,
) -> Updated:
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
    arrays = {"weight": weight, "gradient": gradient, "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
    inputs = like(arrays, ("float32", "float64"))
    w = inputs[0]
    numbers = contiguous("coefficients", np.asarray(coefficients, np.float64), (COEFFICIENTS,), "their number")
    outputs = Updated(*(empty_at_cache_line(w.shape, w.dtype) for _ in range(3)))
    count, kind = ctypes.c_int64(w.size), element_type(w.dtype)
    native_library.call("bngrad_adam_update", count, kind, *pointers(numbers, *inputs, *outputs), num_threads)
    return outputs
