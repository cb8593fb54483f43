"""Activations of com.microsoft, and gradients of activations.

Erf and Gelu, which uses it, are implemented here because onnx's reference evaluator computes Erf in float32.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from bngrad.validation.training_ops._types import default

if TYPE_CHECKING:
    from bngrad.validation.training_ops._types import Array, Mask

_LEAKY_ALPHA = default(0.01)
_QUICK_ALPHA = default(1.702)


def relu_grad(dY: Array, X_or_Y: Array) -> Array:
    """Returns dX = dY where the input, or equivalently the output, is positive, else 0."""
    return np.where(X_or_Y > 0, dY, 0)


def leaky_relu_grad(dY: Array, Y: Array, *, alpha: float = _LEAKY_ALPHA) -> Array:
    """Returns dX = dY where Y is positive, else alpha * dY."""
    return np.where(Y > 0, dY, alpha * dY)


def sigmoid_grad(dY: Array, Y: Array) -> Array:
    """Returns dX = dY * Y * (1 - Y)."""
    return dY * Y * (1 - Y)


def tanh_grad(dY: Array, Y: Array) -> Array:
    """Returns dX = dY * (1 - Y^2)."""
    return dY * (1 - Y * Y)


def dropout_grad(dY: Array, mask: Mask, ratio: Array | None = None, training_mode: Mask | None = None) -> Array:
    """Returns dX = dY * mask / (1 - ratio) in training mode, else dY."""
    if training_mode is None or not training_mode:
        return dY
    return dY * mask / (1 - (0.5 if ratio is None else float(ratio)))


def erf(X: Array) -> Array:
    """Returns Y = 2 / sqrt(pi) * the integral of exp(-t^2) from 0 to X."""
    Y: Array = np.vectorize(math.erf, otypes=[X.dtype])(X)  # NumPy has no erf
    return Y


def gelu(X: Array, *, approximate: str = "none") -> Array:
    """Returns Y = X * Phi(X), with Phi the normal distribution function; or `fast_gelu` if approximate is tanh."""
    return fast_gelu(X) if approximate == "tanh" else X * _normal_cdf(X)


def gelu_grad(dY: Array, X: Array) -> Array:
    """Returns dX = dY * (Phi(X) + X * phi(X)), with phi the normal density."""
    density = np.exp(-X * X / 2) / math.sqrt(2 * math.pi)
    return dY * (_normal_cdf(X) + X * density)


def bias_gelu(X: Array, bias: Array) -> Array:
    """Returns Y = gelu(X + bias)."""
    return gelu(X + bias)


def bias_gelu_grad_dx(dY: Array, X: Array, bias: Array) -> Array:
    """Returns dX = dY * gelu'(X + bias)."""
    return gelu_grad(dY, X + bias)


def bias_fast_gelu_grad_dx(dY: Array, X: Array, bias: Array) -> Array:
    """Returns dX = dY * fast_gelu'(X + bias)."""
    return fast_gelu_grad(dY, X + bias)


def fast_gelu(X: Array, bias: Array | None = None) -> Array:
    """Returns Y = Z / 2 * (1 + tanh(sqrt(2 / pi) * (Z + 0.044715 * Z^3))) with Z = X + bias."""
    z = X if bias is None else X + bias
    return z / 2 * (1 + _fast_tanh(z))


def fast_gelu_grad(dY: Array, X: Array) -> Array:
    """Returns dX = dY / 2 * (1 + t + X * (1 - t^2) * sqrt(2 / pi) * (1 + 3 * 0.044715 * X^2)), t the tanh."""
    t = _fast_tanh(X)
    return dY / 2 * (1 + t + X * (1 - t * t) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * X * X))


def quick_gelu(X: Array, *, alpha: float = _QUICK_ALPHA) -> Array:
    """Returns Y = X * sigmoid(alpha * X)."""
    denominator: Array = 1 + np.exp(-alpha * X)
    return X / denominator


def quick_gelu_grad(dY: Array, X: Array, *, alpha: float = _QUICK_ALPHA) -> Array:
    """Returns dX = dY * s * (1 + alpha * X * (1 - s)) with s = sigmoid(alpha * X)."""
    s: Array = 1 / (1 + np.exp(-alpha * X))
    return dY * s * (1 + alpha * X * (1 - s))


def _fast_tanh(X: Array) -> Array:
    return np.tanh(math.sqrt(2 / math.pi) * (X + 0.044715 * X**3))


def _normal_cdf(X: Array) -> Array:
    return (1 + erf(X / math.sqrt(2))) / 2
