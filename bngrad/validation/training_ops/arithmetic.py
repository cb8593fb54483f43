"""Arithmetic ops of ORT's training dialect, and the gradient of layer norm.

Mean is implemented here because onnx's reference evaluator fails if the first operand is broadcast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from bngrad.validation.training_ops._types import Array, Integers


def mean(*operands: Array) -> Array:
    """Returns the mean of the operands, broadcast against each other."""
    total: Array = sum(operands, np.zeros([], operands[0].dtype))
    return np.asarray(total / len(operands))


def scale(X: Array, factor: Array, *, scale_down: int = 0) -> Array:
    """Returns Y = X / factor if scale_down, else X * factor."""
    return X / factor.astype(X.dtype) if scale_down else X * factor.astype(X.dtype)


def div_grad(dY: Array, A: Array, B: Array) -> tuple[Array, Array]:
    """Returns dA = dY / B and dB = -dY * A / B^2, each summed to the shape of its operand."""
    return sum_to(dY / B, A.shape), sum_to(-dY * A / (B * B), B.shape)


def sum_to(X: Array, shape: tuple[int, ...]) -> Array:
    """Returns the sum of X over the dimensions along which ``shape`` was broadcast."""
    X = X.sum(axis=tuple(range(X.ndim - len(shape))))
    repeated = tuple(i for i, (have, want) in enumerate(zip(X.shape, shape, strict=True)) if have != want)
    total: Array = X.sum(axis=repeated, keepdims=True)
    return total


def broadcast_gradient_args(a_shape: Integers, b_shape: Integers) -> tuple[Integers, Integers]:
    """Returns the axes over which each operand's gradient has to be summed: those along which it was broadcast."""
    rank = max(a_shape.size, b_shape.size)
    a, b = ([1] * (rank - s.size) + s.tolist() for s in (a_shape, b_shape))
    repeated = [[i for i in reversed(range(rank)) if x[i] == 1 != y[i]] for x, y in ((a, b), (b, a))]
    return np.array(repeated[0], np.int64), np.array(repeated[1], np.int64)


def fused_matmul(
    A: Array,
    B: Array,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Array:
    """Returns Y = alpha * A' @ B'; trans swaps the last two dimensions, transBatch moves dimension 0 to -2."""

    def arranged(x: Array, swap: int, move: int) -> Array:
        x = np.moveaxis(x, 0, -2) if move else x
        return np.swapaxes(x, -1, -2) if swap and x.ndim > 1 else x

    return alpha * (arranged(A, transA, transBatchA) @ arranged(B, transB, transBatchB))


def layer_normalization_grad(
    dY: Array, X: Array, scale: Array, mean: Array, inv_std: Array, *, axis: int = -1
) -> tuple[Array, Array, Array]:
    """Returns dX = inv_std * (g - E g - xhat * E[g * xhat]), dscale = sum dY * xhat and dbias = sum dY.

    xhat = (X - mean) * inv_std and g = dY * scale; E is the mean over the axes from ``axis`` on, and the sums
    are over the axes before it.
    """
    dx, dscale = _normalized_grad(dY, (X - mean) * inv_std, scale, inv_std, axis, centered=True)
    return dx, dscale, sum_to(dY, scale.shape)


def simplified_layer_normalization_grad(
    dY: Array, X: Array, scale: Array, inv_std: Array, *, axis: int = -1
) -> tuple[Array, Array]:
    """Returns dX = inv_std * (g - xhat * E[g * xhat]) with xhat = X * inv_std: as above, without a mean."""
    return _normalized_grad(dY, X * inv_std, scale, inv_std, axis, centered=False)


def _normalized_grad(
    dY: Array, xhat: Array, scale: Array, inv_std: Array, axis: int, *, centered: bool
) -> tuple[Array, Array]:
    axes = tuple(range(axis % dY.ndim, dY.ndim))
    g = dY * scale
    dx = g - xhat * (g * xhat).mean(axis=axes, keepdims=True)
    if centered:
        dx -= g.mean(axis=axes, keepdims=True)
    return inv_std * dx, sum_to(dY * xhat, scale.shape)
