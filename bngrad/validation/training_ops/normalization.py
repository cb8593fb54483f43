"""Normalization ops.

They are implemented here because onnx's reference evaluator computes GroupNormalization in float32, sums the
elements instead of their absolute values in LpNormalization with p = 1, loops over the batch size instead of the
channels in LRN, and adds a float32 to a float64 in MeanVarianceNormalization, which it refuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bngrad.validation.training_ops._types import default

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.validation.training_ops._types import Array

_EPSILON = default(1e-5)
_LEAST = default(1e-9)
_ALPHA = default(1e-4)
_BETA = default(0.75)


def group_normalization(
    X: Array,
    scale: Array,
    bias: Array,
    *,
    num_groups: int,
    epsilon: float = _EPSILON,
    stash_type: int = 1,  # noqa: ARG001  everything is computed in the type of X
) -> Array:
    """Returns Y = scale * (X - mean) / sqrt(var + epsilon) + bias, with the statistics of each group of channels.

    scale and bias have one element per channel, as since opset 21.
    """
    grouped = X.reshape(X.shape[0], num_groups, -1)
    mean, var = (statistic(grouped, axis=2, keepdims=True) for statistic in (np.mean, np.var))
    xhat: Array = ((grouped - mean) / np.sqrt(var + float(epsilon))).reshape(X.shape)
    scale, bias = (parameter.reshape(-1, *[1] * (X.ndim - 2)) for parameter in (scale, bias))
    return xhat * scale + bias


def mean_variance_normalization(X: Array, *, axes: Sequence[int] = (0, 2, 3)) -> Array:
    """Returns Y = (X - mean) / (std + epsilon), with the statistics over the axes and an epsilon of 1e-9."""
    mean, std = (statistic(X, axis=tuple(axes), keepdims=True) for statistic in (np.mean, np.std))
    result: Array = (X - mean) / (std + float(_LEAST))
    return result


def lp_normalization(X: Array, *, axis: int = -1, p: int = 2) -> Array:
    """Returns Y = X / (sum over the axis of |X|^p)^(1/p), and 0 where the sum is 0."""
    length = np.linalg.norm(X, ord=p, axis=axis, keepdims=True)
    Y: Array = np.divide(X, length, out=np.zeros_like(X), where=length != 0)
    return Y


def lrn(X: Array, *, size: int, alpha: float = _ALPHA, beta: float = _BETA, bias: float = 1.0) -> Array:
    """Returns Y = X / (bias + alpha / size * square_sum)^beta, with sums over ``size`` neighbouring channels."""
    before = (size - 1) // 2
    channels = range(X.shape[1])
    windows = [X[:, max(0, c - before) : c - before + size] for c in channels]
    square_sum = np.stack([(window**2).sum(axis=1) for window in windows], axis=1)
    Y: Array = X / (float(bias) + float(alpha) / size * square_sum) ** float(beta)
    return Y
