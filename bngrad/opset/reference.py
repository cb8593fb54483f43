"""The ops of domain ``bngrad`` in float64 NumPy: the textbook that all else is checked against.

With xhat = (X - mean) * inv_std and M = the number of elements reduced over ``axes``::

    dbias  = sum dY
    dscale = sum dY * xhat
    dX     = scale * inv_std * (dY - (dbias + xhat * dscale) / M)   training: mean, inv_std depend on X
    dX     = scale * inv_std * dY                                   frozen: they are constants

(Ioffe and Szegedy, "Batch Normalization", 2015, section 3, solved for dX.) ``inv_std`` is
1 / sqrt(biased variance + epsilon). Parameters have the shape of X without ``axes``.

Every function takes arrays of any real dtype and returns float64 arrays.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bngrad.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.float64]

MAX_RANK = 8


class Gradients(NamedTuple):
    """What BatchNormalizationGrad returns."""

    dX: Array
    dscale: Array
    dbias: Array


class SecondGradients(NamedTuple):
    """What BatchNormalizationGradGrad returns."""

    d_dY: Array
    d_X: Array
    d_scale: Array


class Normalized(NamedTuple):
    """What BatchNormalizationTraining returns."""

    Y: Array
    new_running_mean: Array
    new_running_var: Array
    saved_mean: Array
    saved_inv_std: Array


class Statistics(NamedTuple):
    """What BatchNormalizationStatistics returns."""

    mean: Array
    inv_std: Array


def normalize_axes(axes: ArrayLike, rank: int) -> tuple[int, ...]:
    """Returns ``axes`` sorted and non-negative.

    Args:
        axes: The reduction axes, each in [-rank, rank), none twice.
        rank: The number of X's dimensions, 1 to 8.

    Raises:
        InputError: The rank or an axis is out of range, or an axis is given twice.
    """
    if not 1 <= rank <= MAX_RANK:
        raise InputError(f"X has {rank} dimensions; expected 1 to {MAX_RANK}")
    given = [int(axis) for axis in np.asarray(axes, dtype=np.int64).reshape(-1)]
    for axis in given:
        if not -rank <= axis < rank:
            raise InputError(f"axis {axis} is out of range for X of rank {rank}; expected {-rank} to {rank - 1}")
    unique = {axis % rank for axis in given}
    if len(unique) != len(given):
        raise InputError(f"axes {given} name a dimension of X twice; name each reduced dimension once")
    return tuple(sorted(unique))


def parameter_shape(x_shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape of scale, mean and their like: X's shape without the (normalized) ``axes``."""
    return tuple(extent for d, extent in enumerate(x_shape) if d not in axes)


def batch_normalization_grad(
    dY: ArrayLike,
    X: ArrayLike,
    scale: ArrayLike,
    mean: ArrayLike,
    inv_std: ArrayLike,
    axes: ArrayLike,
    training_mode: bool,
) -> Gradients:
    """The gradient of Y = scale * xhat + bias.

    Args:
        dY: Gradient of the loss by Y, the shape of X.
        X: The forward input, rank 1 to 8.
        scale: The shape of X without ``axes``, as are ``mean`` and ``inv_std``.
        mean: The mean that the forward pass subtracted.
        inv_std: 1 / sqrt(variance + epsilon), as the forward pass multiplied by.
        axes: The reduction axes.
        training_mode: Whether mean and inv_std were computed from X (else they are constants: frozen).

    Returns:
        dX with the shape of X; dscale and dbias with the shape of scale.

    Raises:
        InputError: Shapes that do not belong together, or bad axes.
    """
    x = _float64(X)
    dy = _float64(dY)
    reduced = normalize_axes(axes, x.ndim)
    _expect_shape("dY", dy, x.shape, x, reduced)
    scale_, mean_, inv_std_ = _parameters(x, reduced, scale=scale, mean=mean, inv_std=inv_std)
    with _ieee_silence():
        xhat = (x - mean_) * inv_std_
        dbias = _sum(dy, reduced)
        dscale = _sum(dy * xhat, reduced)
        dx = dy - (dbias + xhat * dscale) / _reduced_count(x, reduced) if training_mode else dy
        return Gradients(scale_ * inv_std_ * dx, dscale.squeeze(reduced), dbias.squeeze(reduced))


def batch_normalization_relu_grad(
    dZ: ArrayLike,
    Z: ArrayLike,
    X: ArrayLike,
    scale: ArrayLike,
    mean: ArrayLike,
    inv_std: ArrayLike,
    axes: ArrayLike,
    training_mode: bool,
) -> Gradients:
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

    Returns:
        dX with the shape of X; dscale and dbias with the shape of scale.

    Raises:
        InputError: Shapes that do not belong together, or bad axes.
    """
    x, dz, z = _float64(X), _float64(dZ), _float64(Z)
    reduced = normalize_axes(axes, x.ndim)
    _expect_shape("dZ", dz, x.shape, x, reduced)
    _expect_shape("Z", z, x.shape, x, reduced)
    return batch_normalization_grad(np.where(z > 0, dz, 0.0), x, scale, mean, inv_std, reduced, training_mode)


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
) -> SecondGradients:
    """The gradient of `batch_normalization_grad`, for a loss of dX, dscale and dbias.

    With mean(t) over ``axes`` and P(t) = t - mean(t) - xhat * mean(t * xhat), in training mode::

        d_dY    = scale * inv_std * P(ddX) + ddscale * xhat + ddbias
        d_X     = ddscale * inv_std * P(dY)
                  - scale * inv_std^2 * (xhat * mean(ddX * P(dY)) + mean(dY * xhat) * P(ddX)
                                         + mean(ddX * xhat) * P(dY))
        d_scale = inv_std * sum(ddX * P(dY))

    and with frozen statistics P(t) = t, and d_X = ddscale * inv_std * dY. (Differentiate the formulas on top; mean
    and inv_std depend on X in training mode, and mean(xhat^2) = var / (var + epsilon) is not taken for 1.)

    Args:
        ddX: Gradient of the loss by dX, the shape of X.
        ddscale: Gradient of the loss by dscale, the shape of scale.
        ddbias: Gradient of the loss by dbias, the shape of scale.
        dY: As the other arguments, see `batch_normalization_grad`.
        X: See there.
        scale: See there.
        mean: See there.
        inv_std: See there.
        axes: See there.
        training_mode: See there.

    Returns:
        d_dY and d_X with the shape of X; d_scale with the shape of scale.

    Raises:
        InputError: Shapes that do not belong together, or bad axes.
    """
    x, dy, ddx = _float64(X), _float64(dY), _float64(ddX)
    reduced = normalize_axes(axes, x.ndim)
    _expect_shape("ddX", ddx, x.shape, x, reduced)
    _expect_shape("dY", dy, x.shape, x, reduced)
    ddscale_, ddbias_, scale_, mean_, inv_std_ = _parameters(
        x, reduced, ddscale=ddscale, ddbias=ddbias, scale=scale, mean=mean, inv_std=inv_std
    )
    count = _reduced_count(x, reduced)

    def total(t: Array) -> Array:
        return _sum(t, reduced)

    with _ieee_silence():
        xhat = (x - mean_) * inv_std_
        if not training_mode:
            d_x = ddscale_ * inv_std_ * dy
            d_dy = scale_ * inv_std_ * ddx + ddscale_ * xhat + ddbias_
            return SecondGradients(d_dy, d_x, (inv_std_ * total(ddx * dy)).squeeze(reduced))
        of_dy, of_ddx = total(dy * xhat) / np.float64(count), total(ddx * xhat) / np.float64(count)
        p_dy = dy - total(dy) / np.float64(count) - xhat * of_dy
        p_ddx = ddx - total(ddx) / np.float64(count) - xhat * of_ddx
        through_dx = xhat * total(ddx * p_dy) / np.float64(count) + of_dy * p_ddx + of_ddx * p_dy
        d_x = ddscale_ * inv_std_ * p_dy - scale_ * inv_std_**2 * through_dx
        d_dy = scale_ * inv_std_ * p_ddx + ddscale_ * xhat + ddbias_
        return SecondGradients(d_dy, d_x, (inv_std_ * total(ddx * p_dy)).squeeze(reduced))


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
) -> Normalized:
    """The forward pass with the batch's own statistics.

    new_running = momentum * running + (1 - momentum) * batch, where the batch variance is divided by M (ONNX,
    nGraph), or by max(M - 1, 1) if ``unbiased_running_var`` (MIOpen, TensorFlow, PyTorch). An empty reduction
    (M = 0) has no statistics: they are NaN.

    Args:
        X: Rank 1 to 8.
        scale: The shape of X without ``axes``, as all other parameters.
        bias: Added after scaling.
        running_mean: The running mean before this step.
        running_var: The running variance before this step.
        axes: The reduction axes.
        epsilon: Added to the variance.
        momentum: The weight of the *old* running value, ONNX's convention.
        unbiased_running_var: Whether the running variance takes Bessel's correction.

    Returns:
        Y with the shape of X, and four arrays with the shape of scale.

    Raises:
        InputError: Shapes that do not belong together, or bad axes.
    """
    x = _float64(X)
    reduced = normalize_axes(axes, x.ndim)
    scale_, bias_, old_mean, old_var = _parameters(
        x, reduced, scale=scale, bias=bias, running_mean=running_mean, running_var=running_var
    )
    mean, var = _moments(x, reduced)
    with _ieee_silence():
        inv_std = 1.0 / np.sqrt(var + epsilon)
        y = (x - mean) * inv_std * scale_ + bias_
        count = _reduced_count(x, reduced)
        running = var * (count / max(count - 1, 1)) if unbiased_running_var else var
        new_mean = momentum * old_mean + (1.0 - momentum) * mean
        new_var = momentum * old_var + (1.0 - momentum) * running
    kept = [value.squeeze(reduced) for value in (new_mean, new_var, mean, inv_std)]
    return Normalized(y, *kept)


def batch_normalization_statistics(X: ArrayLike, axes: ArrayLike, epsilon: float) -> Statistics:
    """The batch's mean and 1 / sqrt(biased variance + epsilon), both with the shape of X without ``axes``.

    Raises:
        InputError: Bad axes or rank.
    """
    x = _float64(X)
    reduced = normalize_axes(axes, x.ndim)
    mean, var = _moments(x, reduced)
    with _ieee_silence():
        return Statistics(mean.squeeze(reduced), (1.0 / np.sqrt(var + epsilon)).squeeze(reduced))


def _moments(x: Array, reduced: tuple[int, ...]) -> tuple[Array, Array]:
    """Mean and biased variance over ``reduced``, those dimensions kept with extent 1."""
    with _ieee_silence():
        count = np.float64(_reduced_count(x, reduced))
        mean = _sum(x, reduced) / count
        return mean, _sum(np.square(x - mean), reduced) / count


def _sum(values: Array, reduced: tuple[int, ...]) -> Array:
    """The sum over ``reduced``, those dimensions kept with extent 1.

    NumPy adds pairwise along the last dimension of contiguous memory only, and one by one along any other: at
    10^7 terms that is three digits.
    """
    last = np.ascontiguousarray(np.moveaxis(values, reduced, range(-len(reduced), 0)))
    kept = values.ndim - len(reduced)
    total = last.reshape(*last.shape[:kept], _reduced_count(values, reduced)).sum(axis=-1)
    return np.expand_dims(total, reduced)


def _reduced_count(x: Array, reduced: tuple[int, ...]) -> int:
    count = 1
    for axis in reduced:
        count *= x.shape[axis]
    return count


def _float64(value: ArrayLike) -> Array:
    return np.asarray(value, dtype=np.float64)


def _parameters(x: Array, reduced: tuple[int, ...], **given: ArrayLike) -> list[Array]:
    """Checks each parameter's shape and gives it X's rank, so that it broadcasts."""
    expected = parameter_shape(x.shape, reduced)
    result = []
    for name, value in given.items():
        array = _float64(value)
        _expect_shape(name, array, expected, x, reduced)
        result.append(np.expand_dims(array, reduced))
    return result


def _expect_shape(name: str, got: Array, expected: tuple[int, ...], x: Array, reduced: tuple[int, ...]) -> None:
    if got.shape != expected:
        raise InputError(
            f"{name} has shape {list(got.shape)}; expected {list(expected)} for X of shape {list(x.shape)} "
            f"and axes {list(reduced)}"
        )


@contextlib.contextmanager
def _ieee_silence() -> Iterator[None]:
    """NaN and infinity are answers here (an empty batch, an infinite input), not warnings."""
    with np.errstate(all="ignore"):
        yield
