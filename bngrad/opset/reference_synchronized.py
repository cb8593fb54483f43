"""Reference implementation of the ops of `synchronized`, in float64 NumPy.

All functions take arrays of any real dtype and return float64 arrays. `all_gather` and `all_reduce` are those of
a single rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bngrad.errors import InputError
from bngrad.opset.axes import normalize_axes
from bngrad.opset.op_results import (
    Applied,
    Gathered,
    GradApplied,
    GradSums,
    Merged,
    Moments,
    Reduced,
    returns,
)
from bngrad.opset.quantities import ROWS
from bngrad.opset.reduction import (
    expand_parameters,
    expect_shape,
    float64,
    ieee_warnings_off,
    reduce_sum,
    reduced_count,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.float64]


@returns(Moments)
def batch_normalization_moments(X: ArrayLike, axes: ArrayLike) -> Moments:
    """Returns the count, the mean and M2 = sum (X - mean)^2 of a rank's part of the batch; 0 if X is empty."""
    x = float64(X)
    reduced = normalize_axes(axes, x.ndim)
    count = reduced_count(x, reduced)
    with ieee_warnings_off():
        mean = reduce_sum(x, reduced) / np.float64(max(count, 1))
        squares = reduce_sum(np.square(x - mean), reduced)
    return Moments(np.stack([np.full(mean.size, float(count)), mean.reshape(-1), squares.reshape(-1)]))


@returns(Merged)
def batch_normalization_merge_moments(
    gathered_moments: ArrayLike,
    running_mean: ArrayLike,
    running_var: ArrayLike,
    epsilon: float,
    momentum: float,
    unbiased_running_var: bool,
) -> Merged:
    """Returns the statistics of the whole batch, from the moments of all ranks.

    With n, m and M2 of each rank::

        batch_count = sum n
        batch_mean  = m_0 + sum n (m - m_0) / batch_count
        var         = sum (M2 + n (m - batch_mean)^2) / batch_count

    Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979. The
    running statistics are those of `batch_normalization_training` with M = batch_count. The statistics are NaN if
    that is 0.
    """
    gathered, old_mean, old_var = float64(gathered_moments), float64(running_mean), float64(running_var)
    _require_rows("gathered_moments", gathered, old_mean.size)
    if old_var.shape != old_mean.shape:
        raise InputError(
            f"running_var has shape {list(old_var.shape)}; expected {list(old_mean.shape)}, that of running_mean"
        )
    counts, means, squares = (gathered[:, row] for row in range(3))
    with ieee_warnings_off():
        total = counts.sum(axis=0)
        mean = means[0] + (counts * (means - means[0])).sum(axis=0) / total
        # A rank without elements adds nothing, also where the square overflows.
        deviations = np.where(counts == 0, 0, means - mean)
        var = ((squares + counts * np.square(deviations)).sum(axis=0) / total).reshape(old_mean.shape)
        mean = mean.reshape(old_mean.shape)
        count = np.asarray(total[0] if total.size else np.nan)
        running = var * (count / np.maximum(count - 1, 1)) if unbiased_running_var else var
        new_mean = momentum * old_mean + (1.0 - momentum) * mean
        new_var = momentum * old_var + (1.0 - momentum) * running
        return Merged(new_mean, new_var, mean, np.asarray(1.0 / np.sqrt(var + epsilon)), count)


@returns(Applied)
def batch_normalization_apply(
    X: ArrayLike,
    scale: ArrayLike,
    bias: ArrayLike,
    batch_mean: ArrayLike,
    batch_inv_std: ArrayLike,
    axes: ArrayLike,
) -> Applied:
    """Returns Y = (X - batch_mean) * batch_inv_std * scale + bias."""
    x = float64(X)
    reduced = normalize_axes(axes, x.ndim)
    scale_, bias_, mean, inv_std = expand_parameters(
        x, reduced, scale=scale, bias=bias, batch_mean=batch_mean, batch_inv_std=batch_inv_std
    )
    with ieee_warnings_off():
        return Applied((x - mean) * inv_std * scale_ + bias_)


@returns(GradSums)
def batch_normalization_grad_sums(
    dY: ArrayLike,
    X: ArrayLike,
    scale: ArrayLike,
    batch_mean: ArrayLike,
    batch_inv_std: ArrayLike,
    axes: ArrayLike,
) -> GradSums:
    """Returns sum dY and sum dY * (X - batch_mean) over a rank's part of the batch.

    dscale, the second sum times batch_inv_std, and dbias, the first, are the rank's part of these gradients.
    """
    x, dy = float64(X), float64(dY)
    reduced = normalize_axes(axes, x.ndim)
    expect_shape("dY", dy, x.shape, x, reduced)
    _, mean, inv_std = expand_parameters(
        x, reduced, scale=scale, batch_mean=batch_mean, batch_inv_std=batch_inv_std
    )
    with ieee_warnings_off():
        dbias = reduce_sum(dy, reduced)
        total = reduce_sum(dy * (x - mean), reduced)
        sums = np.stack([dbias.reshape(-1), total.reshape(-1)])
        dscale = reduce_sum(dy * (x - mean) * inv_std, reduced)
        return GradSums(sums, dscale.squeeze(reduced), dbias.squeeze(reduced))


@returns(GradSums)
def batch_normalization_relu_grad_sums(
    dZ: ArrayLike,
    Z: ArrayLike,
    X: ArrayLike,
    scale: ArrayLike,
    batch_mean: ArrayLike,
    batch_inv_std: ArrayLike,
    axes: ArrayLike,
) -> GradSums:
    """Returns `batch_normalization_grad_sums` of Z = relu(Y): dY = dZ where Z > 0, else 0."""
    dy = dy_of_relu(dZ, Z, X, axes)
    return batch_normalization_grad_sums(dy, X, scale, batch_mean, batch_inv_std, axes)


@returns(GradApplied)
def batch_normalization_grad_apply(
    dY: ArrayLike,
    X: ArrayLike,
    scale: ArrayLike,
    batch_mean: ArrayLike,
    batch_inv_std: ArrayLike,
    gathered_sums: ArrayLike,
    batch_count: ArrayLike,
    axes: ArrayLike,
) -> GradApplied:
    """Returns dX = scale * inv_std * (dY - (dbias + xhat * dscale) / batch_count), with the sums of all ranks.

    dbias is the first row of these sums, and dscale the second times inv_std.
    """
    x, dy, gathered, count = float64(X), float64(dY), float64(gathered_sums), float64(batch_count)
    reduced = normalize_axes(axes, x.ndim)
    expect_shape("dY", dy, x.shape, x, reduced)
    scale_, mean, inv_std = expand_parameters(
        x, reduced, scale=scale, batch_mean=batch_mean, batch_inv_std=batch_inv_std
    )
    _require_rows("gathered_sums", gathered, scale_.size)
    if count.shape != ():
        raise InputError(f"batch_count has shape {list(count.shape)}; expected a scalar")
    with ieee_warnings_off():
        dbias, total = (gathered[:, row].sum(axis=0).reshape(scale_.shape) for row in range(2))
        xhat, dscale = (x - mean) * inv_std, total * inv_std
        return GradApplied(scale_ * inv_std * (dy - (dbias + xhat * dscale) / count))


@returns(GradApplied)
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
) -> GradApplied:
    """Returns `batch_normalization_grad_apply` of Z = relu(Y): dY = dZ where Z > 0, else 0."""
    dy = dy_of_relu(dZ, Z, X, axes)
    return batch_normalization_grad_apply(
        dy, X, scale, batch_mean, batch_inv_std, gathered_sums, batch_count, axes
    )


@returns(Gathered)
def all_gather(value: ArrayLike, key: str) -> Gathered:  # noqa: ARG001 - the op's attribute
    """Returns the values of all ranks, [R, ...], for a single rank."""
    return Gathered(float64(value)[np.newaxis])


@returns(Reduced)
def all_reduce(partial: ArrayLike, key: str) -> Reduced:  # noqa: ARG001 - the op's attribute
    """Returns the sum over all ranks, for a single rank."""
    return Reduced(float64(partial))


def dy_of_relu(dZ: ArrayLike, Z: ArrayLike, X: ArrayLike, axes: ArrayLike) -> Array:
    """Returns the gradient with respect to Y, of Z = relu(Y).

    Raises:
        InputError: Shapes do not match, or axes are invalid.
    """
    x, dz, z = float64(X), float64(dZ), float64(Z)
    reduced = normalize_axes(axes, x.ndim)
    expect_shape("dZ", dz, x.shape, x, reduced)
    expect_shape("Z", z, x.shape, x, reduced)
    return np.where(z > 0, dz, 0.0)


def _require_rows(name: str, array: Array, channels: int) -> None:
    rows = ROWS[name.removeprefix("gathered_")]
    if array.ndim != 3 or not array.shape[0] or array.shape[1:] != (rows, channels):
        raise InputError(f"{name} has shape {list(array.shape)}; expected [R, {rows}, {channels}]")
