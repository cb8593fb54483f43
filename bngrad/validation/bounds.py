"""Elementwise error bounds for correct implementations of batch norm.

With unit roundoff u, to first order in u:

* A sum of M terms t: (4 + sqrt(M)) u sum|t|. Rounding errors of a sum behave like independent random variables
  (Higham and Mary, "A new approach to probabilistic rounding error analysis", 2019), so sqrt(M) covers even naive
  summation, and the 4 covers the rounding errors of the terms.
* dX = scale * inv_std * (dY - (dbias + xhat * dscale) / M) has eight operations: 8 u times the same expression
  with all terms positive, plus the propagated errors of dbias and dscale.
* The mean is a sum of M terms. An error e of the mean adds e^2 to the variance. 1 / sqrt(var + epsilon) has half
  the relative error of var + epsilon, and three roundings.

The bounds are elementwise, so that a small error in a channel with small gradients is detected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bngrad.opset import reference
from bngrad.opset.axes import normalize_axes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Float64 = NDArray[np.float64]


class Expected(NamedTuple):
    """The exact result, and the error bound of each element."""

    value: Float64
    bound: Float64


def gradients(
    dY: Float64,
    X: Float64,
    scale: Float64,
    mean: Float64,
    inv_std: Float64,
    axes: Sequence[int],
    *,
    training_mode: bool,
    unit: float,
) -> list[Expected]:
    """Returns the expected outputs of BatchNormalizationGrad.

    Args:
        dY: Gradient with respect to Y, with X's shape.
        X: Input of the forward pass.
        scale: With X's shape without ``axes``; the same for ``mean`` and ``inv_std``.
        mean: The mean of the batch, or the running mean.
        inv_std: 1 / sqrt(variance + epsilon).
        axes: The reduction axes.
        training_mode: Whether ``mean`` and ``inv_std`` are functions of X; if not, dX = scale inv_std dY.
        unit: The unit roundoff of the arithmetic, 2^-24 for float.

    Returns:
        dX, dscale and dbias.
    """
    reduced, kept = _reduced(X, axes)
    exact = reference.batch_normalization_grad(dY, X, scale, mean, inv_std, reduced, training_mode=training_mode)
    count = X.size // max(scale.size, 1)
    xhat = np.abs((X - mean.reshape(kept)) * inv_std.reshape(kept))
    dy = np.abs(dY)
    sum_factor = (4 + np.sqrt(count)) * unit
    dbias_bound = sum_factor * dy.sum(axis=reduced)
    dscale_bound = sum_factor * (dy * xhat).sum(axis=reduced)
    if not training_mode:
        return [
            Expected(exact.dX, 4 * unit * np.abs(exact.dX)),
            Expected(exact.dscale, dscale_bound),
            Expected(exact.dbias, dbias_bound),
        ]
    through_sums = (np.abs(exact.dbias).reshape(kept) + xhat * np.abs(exact.dscale).reshape(kept)) / count
    sum_errors = (dbias_bound.reshape(kept) + xhat * dscale_bound.reshape(kept)) / count
    dx_bound = np.abs(scale * inv_std).reshape(kept) * (8 * unit * (dy + through_sums) + sum_errors)
    return [
        Expected(exact.dX, dx_bound),
        Expected(exact.dscale, dscale_bound),
        Expected(exact.dbias, dbias_bound),
    ]


def normalized(
    X: Float64,
    scale: Float64,
    bias: Float64,
    running_mean: Float64,
    running_var: Float64,
    *,
    epsilon: float,
    momentum: float,
    unit: float,
    shifted: bool = False,
) -> list[Expected]:
    """Returns the expected outputs of a training-mode batch norm over dimension 1 with biased running variance.

    Args:
        X: Input, [N, C, ...].
        scale: [C]; the same for ``bias``, ``running_mean`` and ``running_var``.
        bias: Added after scaling.
        running_mean: The running mean before this step.
        running_var: The running variance before this step.
        epsilon: Added to the variance.
        momentum: The weight of the old running value.
        unit: The unit roundoff of the arithmetic, 2^-24 for float.
        shifted: Whether the mean is a sum of differences from a value of the channel, which loses no digit to it.

    Returns:
        Y, the new running mean and variance, the saved mean and inv_std.
    """
    axes, kept = _reduced(X, channel_axes(X.ndim))
    exact = reference.batch_normalization_training(
        X, scale, bias, running_mean, running_var, axes, epsilon, momentum, unbiased_running_var=False
    )
    count = X.size // scale.size
    sum_factor = (4 + np.sqrt(count)) * unit
    inv_std = exact.saved_inv_std
    terms = X - exact.saved_mean.reshape(kept) if shifted else X
    mean_bound = sum_factor * np.abs(terms).sum(axis=axes) / count
    if shifted:
        mean_bound += 2 * unit * np.abs(exact.saved_mean)
    variance = 1 / np.square(inv_std) - epsilon
    variance_bound = sum_factor * np.abs(variance) + np.square(mean_bound)
    inv_std_relative = 0.5 * variance_bound * np.square(inv_std) + 3 * unit
    xhat = np.abs((X - exact.saved_mean.reshape(kept)) * inv_std.reshape(kept))
    xhat_bound = xhat * (inv_std_relative + 4 * unit).reshape(kept) + (inv_std * mean_bound).reshape(kept)
    y_bound = np.abs(scale).reshape(kept) * xhat_bound + unit * (np.abs(exact.Y) + np.abs(bias).reshape(kept))
    old, new = abs(momentum), abs(1 - momentum)
    running_mean_bound = new * mean_bound + 4 * unit * (
        old * np.abs(running_mean) + new * np.abs(exact.saved_mean)
    )
    running_var_bound = new * variance_bound + 4 * unit * (old * np.abs(running_var) + new * np.abs(variance))
    return [
        Expected(exact.Y, y_bound),
        Expected(exact.new_running_mean, running_mean_bound),
        Expected(exact.new_running_var, running_var_bound),
        Expected(exact.saved_mean, mean_bound),
        Expected(inv_std, inv_std * inv_std_relative),
    ]


def statistics(X: Float64, axes: Sequence[int], *, epsilon: float, unit: float) -> list[Expected]:
    """Returns the expected outputs of BatchNormalizationStatistics, mean and inv_std.

    Args:
        X: Input.
        axes: The reduction axes.
        epsilon: Added to the variance.
        unit: The unit roundoff of the arithmetic, 2^-24 for float.
    """
    reduced, _ = _reduced(X, axes)
    mean, inv_std = reference.batch_normalization_statistics(X, reduced, epsilon)
    count = X.size // max(mean.size, 1)
    sum_factor = (4 + np.sqrt(count)) * unit
    mean_bound = sum_factor * np.abs(X).sum(axis=reduced) / max(count, 1)
    variance = 1 / np.square(inv_std) - epsilon
    variance_bound = sum_factor * np.abs(variance) + np.square(mean_bound)
    return [
        Expected(mean, mean_bound),
        Expected(inv_std, inv_std * (0.5 * variance_bound * np.square(inv_std) + 3 * unit)),
    ]


def channel_axes(rank: int) -> tuple[int, ...]:
    """Returns the reduction axes of a batch norm with its channels in dimension 1."""
    return (0, *range(2, rank))


def _reduced(X: Float64, axes: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the normalized axes, and the shape by which a parameter broadcasts with X."""
    reduced = normalize_axes(axes, X.ndim)
    return reduced, tuple(1 if d in reduced else size for d, size in enumerate(X.shape))
