"""Reference implementation of the ops of domain ``bngrad``, in float64 NumPy.

With xhat = (X - mean) * inv_std and M = the number of elements reduced over ``axes``::

    dbias  = sum dY
    dscale = sum dY * xhat
    dX     = scale * inv_std * (dY - (dbias + xhat * dscale) / M)   training: mean and inv_std depend on X
    dX     = scale * inv_std * dY                                   frozen: mean and inv_std are constants

and the step of Adam and AdamW (see `adam_update`).

Derived from Ioffe and Szegedy, "Batch Normalization", 2015, section 3. ``inv_std`` is
1 / sqrt(biased variance + epsilon). Parameters have X's shape without ``axes``.

All functions take arrays of any real dtype and return float64 arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bngrad.errors import InputError
from bngrad.opset.axes import normalize_axes
from bngrad.opset.op_results import Gradients, Normalized, SecondGradients, Statistics, Updated, returns
from bngrad.opset.quantities import COEFFICIENTS
from bngrad.opset.reduction import (
    expand_parameters,
    expect_shape,
    float64,
    ieee_warnings_off,
    moments,
    reduce_sum,
    reduced_count,
)
from bngrad.opset.reference_synchronized import (
    all_gather,
    all_reduce,
    batch_normalization_apply,
    batch_normalization_grad_apply,
    batch_normalization_grad_sums,
    batch_normalization_merge_moments,
    batch_normalization_moments,
    batch_normalization_relu_grad_apply,
    batch_normalization_relu_grad_sums,
    dy_of_relu,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.float64]


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


@returns(Gradients)
def batch_normalization_grad(
    dY: ArrayLike,
    X: ArrayLike,
    scale: ArrayLike,
    mean: ArrayLike,
    inv_std: ArrayLike,
    axes: ArrayLike,
    training_mode: bool,
) -> Gradients:
    """Returns the gradients of Y = scale * xhat + bias."""
    x = float64(X)
    dy = float64(dY)
    reduced = normalize_axes(axes, x.ndim)
    expect_shape("dY", dy, x.shape, x, reduced)
    scale_, mean_, inv_std_ = expand_parameters(x, reduced, scale=scale, mean=mean, inv_std=inv_std)
    with ieee_warnings_off():
        xhat = (x - mean_) * inv_std_
        dbias = reduce_sum(dy, reduced)
        dscale = reduce_sum(dy * xhat, reduced)
        dx = dy - (dbias + xhat * dscale) / reduced_count(x, reduced) if training_mode else dy
        return Gradients(scale_ * inv_std_ * dx, dscale.squeeze(reduced), dbias.squeeze(reduced))


@returns(Gradients)
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
    """Returns the gradients of Z = relu(Y), where Y is the batch normalization of X: dY = dZ if Z > 0, else 0."""
    dy = dy_of_relu(dZ, Z, X, axes)
    return batch_normalization_grad(dy, X, scale, mean, inv_std, axes, training_mode)


@returns(SecondGradients)
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
    """Returns the gradients of `batch_normalization_grad`, for a loss that depends on dX, dscale and dbias.

    With mean(t) over ``axes`` and P(t) = t - mean(t) - xhat * mean(t * xhat), in training mode::

        d_dY    = scale * inv_std * P(ddX) + ddscale * xhat + ddbias
        d_X     = ddscale * inv_std * P(dY)
                  - scale * inv_std^2 * (xhat * mean(ddX * P(dY)) + mean(dY * xhat) * P(ddX)
                                         + mean(ddX * xhat) * P(dY))
        d_scale = inv_std * sum(ddX * P(dY))

    and with frozen statistics P(t) = t and d_X = ddscale * inv_std * dY. These are the derivatives of the formulas
    of the module's docstring; in training mode, mean and inv_std depend on X, and mean(xhat^2) = var / (var +
    epsilon) is not approximated by 1.
    """
    x, dy, ddx = float64(X), float64(dY), float64(ddX)
    reduced = normalize_axes(axes, x.ndim)
    expect_shape("ddX", ddx, x.shape, x, reduced)
    expect_shape("dY", dy, x.shape, x, reduced)
    ddscale_, ddbias_, scale_, mean_, inv_std_ = expand_parameters(
        x, reduced, ddscale=ddscale, ddbias=ddbias, scale=scale, mean=mean, inv_std=inv_std
    )
    count = reduced_count(x, reduced)

    def total(t: Array) -> Array:
        return reduce_sum(t, reduced)

    with ieee_warnings_off():
        xhat = (x - mean_) * inv_std_
        if not training_mode:
            d_x = ddscale_ * inv_std_ * dy
            d_dy = scale_ * inv_std_ * ddx + ddscale_ * xhat + ddbias_
            return SecondGradients(d_dy, d_x, total(inv_std_ * ddx * dy).squeeze(reduced))
        of_dy, of_ddx = total(dy * xhat) / np.float64(count), total(ddx * xhat) / np.float64(count)
        p_dy = dy - total(dy) / np.float64(count) - xhat * of_dy
        p_ddx = ddx - total(ddx) / np.float64(count) - xhat * of_ddx
        through_dx = xhat * total(ddx * p_dy) / np.float64(count) + of_dy * p_ddx + of_ddx * p_dy
        d_x = ddscale_ * inv_std_ * p_dy - scale_ * inv_std_**2 * through_dx
        d_dy = scale_ * inv_std_ * p_ddx + ddscale_ * xhat + ddbias_
        return SecondGradients(d_dy, d_x, total(inv_std_ * ddx * p_dy).squeeze(reduced))


@returns(Normalized)
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
    """Returns the forward pass with the statistics of the batch.

    new_running = momentum * running + (1 - momentum) * batch, where the batch variance is divided by M (ONNX,
    nGraph), or by max(M - 1, 1) if ``unbiased_running_var`` is set (MIOpen, TensorFlow, PyTorch). The statistics
    of an empty reduction (M = 0) are NaN.
    """
    x = float64(X)
    reduced = normalize_axes(axes, x.ndim)
    scale_, bias_, old_mean, old_var = expand_parameters(
        x, reduced, scale=scale, bias=bias, running_mean=running_mean, running_var=running_var
    )
    mean, var = moments(x, reduced)
    with ieee_warnings_off():
        inv_std = 1.0 / np.sqrt(var + epsilon)
        y = (x - mean) * inv_std * scale_ + bias_
        count = reduced_count(x, reduced)
        running = var * (count / max(count - 1, 1)) if unbiased_running_var else var
        new_mean = momentum * old_mean + (1.0 - momentum) * mean
        new_var = momentum * old_var + (1.0 - momentum) * running
    kept = [value.squeeze(reduced) for value in (new_mean, new_var, mean, inv_std)]
    return Normalized(y, *kept)


@returns(Statistics)
def batch_normalization_statistics(X: ArrayLike, axes: ArrayLike, epsilon: float) -> Statistics:
    """Returns the batch's mean and 1 / sqrt(biased variance + epsilon), both with X's shape without ``axes``."""
    x = float64(X)
    reduced = normalize_axes(axes, x.ndim)
    mean, var = moments(x, reduced)
    with ieee_warnings_off():
        return Statistics(mean.squeeze(reduced), (1.0 / np.sqrt(var + epsilon)).squeeze(reduced))


@returns(Updated)
def adam_update(
    weight: ArrayLike, gradient: ArrayLike, exp_avg: ArrayLike, exp_avg_sq: ArrayLike, coefficients: ArrayLike
) -> Updated:
    """Returns a weight and its moving averages after a step of Adam or AdamW.

    With g = gradient * gradient_scale + l2_penalty * weight::

        new_exp_avg    = beta1 * exp_avg + (1 - beta1) * g
        new_exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * g^2
        new_weight     = weight * weight_factor
                         - step_size * new_exp_avg / (sqrt(new_exp_avg_sq) / sqrt_bias_correction2 + epsilon)

    Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, algorithm 1, with
    step_size = learning_rate / (1 - beta1^t) and sqrt_bias_correction2 = sqrt(1 - beta2^t) in step t.
    Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019, algorithm 2: Adam with the weight decay d
    has l2_penalty = d and weight_factor = 1; AdamW has l2_penalty = 0 and weight_factor = 1 - learning_rate * d.
    """
    w, c = float64(weight), float64(coefficients)
    others = {"gradient": float64(gradient), "exp_avg": float64(exp_avg), "exp_avg_sq": float64(exp_avg_sq)}
    for name, array in others.items():
        if array.shape != w.shape:
            raise InputError(
                f"{name} has shape {list(array.shape)}; expected {list(w.shape)}, the shape of weight"
            )
    if c.shape != (COEFFICIENTS,):
        raise InputError(f"coefficients has shape {list(c.shape)}; expected [{COEFFICIENTS}]")
    scale, l2_penalty, weight_factor, one_minus_beta1, beta2, one_minus_beta2, step_size, sqrt_correction, eps = c
    with ieee_warnings_off():
        g = others["gradient"] * scale + l2_penalty * w
        m = (1 - one_minus_beta1) * others["exp_avg"] + one_minus_beta1 * g
        v = beta2 * others["exp_avg_sq"] + one_minus_beta2 * g**2
        return Updated(w * weight_factor - step_size * m / (np.sqrt(v) / sqrt_correction + eps), m, v)
