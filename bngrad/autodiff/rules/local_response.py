"""Normalizations without parameters: by the neighboring channels, or by a length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bngrad.autodiff.rule import gradient
from bngrad.graph.batch_norm_terms import collapsed_shape, statistics_dtype
from bngrad.graph.node_reader import like
from bngrad.opset.op_attributes import ANY, AXIS

if TYPE_CHECKING:
    import onnx_ir as ir
    from numpy.typing import NDArray

    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients

_MAX_CHANNELS = 1 << 13
"""The gradient is a product with a matrix of all pairs of channels: 256 MiB in float."""


@gradient("LRN", versions=(13,), attributes={"alpha": ANY, "beta": ANY, "bias": ANY, "size": ANY})
def lrn(back: Backward) -> Gradients:
    """For Y = X U^-beta with U = bias + alpha A X^2: dX = dY U^-beta - 2 alpha beta X A^T(dY X U^-beta / U).

    The matrix A takes the mean over a window of channels. As a product of matrices it is several times faster than
    as an average pooling with strides or as a convolution (measured).
    """
    x, dY = back.x(0), back.dY
    channels = None if x.shape is None or len(x.shape) < 2 else x.shape[1]
    if not isinstance(channels, int):
        back.refuse("the number of channels of its X is unknown; expected a number in its shape")
    size = back.attribute("size", 1)
    if size < 1:
        back.refuse(f"its size is {size}; expected at least 1")
    if channels > _MAX_CHANNELS:
        back.refuse(f"its X has {channels} channels; expected at most {_MAX_CHANNELS}")
    alpha, beta = back.attribute("alpha", 1e-4), back.attribute("beta", 0.75)
    shape = collapsed_shape(back, x)
    window = _window(channels, size)

    def mean(of: ir.Value, weights: NDArray[np.float64]) -> ir.Value:
        columns = back.op("Reshape", of, shape, allowzero=1)
        product = back.op("MatMul", back.constant(weights, x.dtype or statistics_dtype(x)), columns)
        return back.op("Reshape", product, back.op("Shape", x), allowzero=1)

    def times(value: ir.Value, number: float) -> ir.Value:
        return back.op("Mul", value, like(back, number, x))

    u = back.op(
        "Add", times(mean(back.op("Mul", x, x), window), alpha), like(back, back.attribute("bias", 1.0), x)
    )
    through_x = back.op("Mul", dY, back.op("Pow", u, like(back, -beta, x)))
    of_u = mean(back.op("Div", back.op("Mul", through_x, x), u), window.T)
    return [back.op("Sub", through_x, back.op("Mul", times(x, 2 * alpha * beta), of_u))]


@gradient("LpNormalization", versions=(1, 22), attributes={**AXIS, "p": (1, 2)})
def lp_normalization(back: Backward) -> Gradients:
    """For Y = X / L along an axis: dX = (dY - D sum dY Y) / L, and 0 where L is 0.

    D is the gradient of the length L: Y for p = 2, sign(X) for p = 1.
    """
    x, dY, y = back.x(0), back.dY, back.y()
    p, axes = back.attribute("p", 2), back.int64([back.attribute("axis", -1)])
    length = back.op(f"ReduceL{p}", x, axes, keepdims=1)
    by_x = y if p == 2 else back.op("Sign", x)
    along = back.op("ReduceSum", back.op("Mul", dY, y), axes, keepdims=1)
    difference = back.op("Sub", dY, back.op("Mul", by_x, along))
    is_zero = back.op("Equal", length, like(back, 0, x))
    quotient = back.op("Div", difference, back.op("Where", is_zero, like(back, 1, x), length))
    return [back.op("Where", is_zero, like(back, 0, x), quotient)]


def _window(channels: int, size: int) -> NDArray[np.float64]:
    """Returns the matrix that takes the sum over the window of each channel, divided by the window's size."""
    before = (size - 1) // 2
    distance = np.arange(channels) - np.arange(channels)[:, None]
    return ((distance >= -before) & (distance < size - before)) / size
