"""Activations: dX = dY * f'(X), as ORT's own gradient op where it has one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.autodiff.rule import gradient
from bngrad.graph.batch_norm_terms import statistics_dtype
from bngrad.graph.broadcasting import sum_to
from bngrad.graph.node_reader import dtype_of, like
from bngrad.graph.sigmoids import sigmoid as sigmoid_of
from bngrad.opset.op_attributes import ALPHA, ANY
from bngrad.opset.ort_dialect import MICROSOFT

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients


@gradient("Relu", versions=(14,))
def relu(back: Backward) -> Gradients:
    """dX = dY where Y > 0, else 0; ReluGrad multiplies, which is right only for finite dY."""
    if back.unbounded:
        return [back.kept(_positive(back, back.y()), back.dY)]
    return [back.microsoft("ReluGrad", back.dY, back.y())]


@gradient("LeakyRelu", versions=(16,), attributes=ALPHA)
def leaky_relu(back: Backward) -> Gradients:
    """dX = dY where X > 0, else alpha dY; at 0 by the framework's convention."""
    if back.unbounded or back.tie == "right":
        falling = back.times(back.dY, like(back, back.attribute("alpha", 0.01), back.dY))
        return [back.op("Where", _rising(back), back.dY, falling)]
    # The gradient op needs the sign of Y, which is the sign of X unless alpha is negative.
    y = back.y() if back.attribute("alpha", 0.01) >= 0 else back.x(0)
    return [back.microsoft("LeakyReluGrad", back.dY, y, **back.attributes())]


@gradient("PRelu", inputs=(0, 1), versions=(16,))
def prelu(back: Backward) -> Gradients:
    """dX = dY where X > 0, else dY slope, at 0 by the framework's convention; dslope = sum(dY min(X, 0))."""
    dY, x, slope = back.dY, back.x(0), back.x(1)
    dX = dslope = None
    if back.needs(0):
        dX = back.op("Where", _rising(back), dY, back.times(dY, slope))
    if back.needs(1):
        dslope = sum_to(back, back.times(dY, back.op("Min", x, like(back, 0, x))), slope, x)
    return [dX, dslope]


@gradient("Elu", versions=(6, 22), attributes=ALPHA)
def elu(back: Backward) -> Gradients:
    """dX = dY where X > 0, else dY alpha exp X, which is dY (Y + alpha)."""
    return _of_exponential(back, back.attribute("alpha", 1.0), 1.0)


@gradient("Selu", versions=(6, 22), attributes={"alpha": ANY, "gamma": ANY})
def selu(back: Backward) -> Gradients:
    """dX = dY gamma where X > 0, else dY gamma alpha exp X, which is dY (Y + gamma alpha)."""
    gamma = back.attribute("gamma", 1.0507009873554805)
    return _of_exponential(back, gamma * back.attribute("alpha", 1.6732632423543772), gamma)


@gradient("Celu", versions=(12, 28), attributes=ALPHA)
def celu(back: Backward) -> Gradients:
    """dX = dY where X > 0, else dY exp(X / alpha), which is dY (Y / alpha + 1)."""
    y = back.y()
    negative = back.op("Div", back.op("Min", y, like(back, 0, y)), like(back, back.attribute("alpha", 1.0), y))
    return [back.times(back.dY, back.op("Add", negative, like(back, 1, y)))]


@gradient("ThresholdedRelu", versions=(10, 22), attributes=ALPHA)
def thresholded_relu(back: Backward) -> Gradients:
    """dX = dY where X > alpha, else 0."""
    above = back.op("Greater", back.x(0), like(back, back.attribute("alpha", 1.0), back.dY))
    return [back.kept(above, back.dY)]


@gradient("Shrink", versions=(9,), attributes={"bias": ANY, "lambd": ANY})
def shrink(back: Backward) -> Gradients:
    """dX = dY where |X| > lambd, else 0."""
    dtype = statistics_dtype(back.x(0))  # of the kernel's comparison
    size = back.op("Abs", back.cast(back.x(0), dtype))
    outside = back.op("Greater", size, back.constant(back.attribute("lambd", 0.5), dtype))
    return [back.kept(outside, back.dY)]


@gradient("Softsign", versions=(1, 22))
def softsign(back: Backward) -> Gradients:
    """dX = dY / (1 + |X|)^2."""
    size = back.op("Add", back.op("Abs", back.x(0)), like(back, 1, back.dY))
    return [back.op("Div", back.dY, back.op("Mul", size, size))]


@gradient("Mish", versions=(18, 22))
def mish(back: Backward) -> Gradients:
    """dX = dY (t + X (1 - t^2) sigmoid X), t = tanh softplus X, where Y = X t.

    Beyond 1000 the factor is 0 or 1 in any type, and an infinite X would give NaN.
    """
    x, unit = back.x(0), like(back, 1, back.dY)
    x = back.op("Clip", x, like(back, -1000, x), like(back, 1000, x))
    t = back.op("Tanh", back.op("Softplus", x))
    bend = back.op("Mul", back.op("Sub", unit, back.op("Mul", t, t)), sigmoid_of(back, x, dtype_of(back.dY)))
    return [back.times(back.dY, back.op("Add", t, back.op("Mul", x, bend)))]


@gradient("Softplus", versions=(1, 22))
def softplus(back: Backward) -> Gradients:
    """dX = dY sigmoid X."""
    return [back.times(back.dY, sigmoid_of(back, back.x(0), dtype_of(back.x(0))))]


@gradient("Sigmoid", versions=(13,))
def sigmoid(back: Backward) -> Gradients:
    """dX = dY Y (1 - Y)."""
    if back.unbounded:
        y = back.y()
        return [back.times(back.dY, back.op("Mul", y, back.op("Sub", like(back, 1, y), y)))]
    return [back.microsoft("SigmoidGrad", back.dY, back.y())]


@gradient("Tanh", versions=(13,))
def tanh(back: Backward) -> Gradients:
    """dX = dY (1 - Y^2)."""
    if back.unbounded:
        y = back.y()
        return [back.times(back.dY, back.op("Sub", like(back, 1, y), back.op("Mul", y, y)))]
    return [back.microsoft("TanhGrad", back.dY, back.y())]


@gradient("HardSigmoid", versions=(6, 22), attributes={"alpha": ANY, "beta": ANY})
def hard_sigmoid(back: Backward) -> Gradients:
    """dX = dY alpha where 0 < Y < 1, else 0."""
    scaled = back.op("Mul", back.dY, like(back, back.attribute("alpha", 0.2), back.dY))
    return [back.kept(_inside(back, back.y()), scaled)]


@gradient("HardSwish", versions=(14, 22))
def hard_swish(back: Backward) -> Gradients:
    """dX = dY (h + X / 6 where 0 < h < 1), h = hard sigmoid X."""
    x = back.x(0)
    h = back.op("HardSigmoid", x, alpha=1 / 6, beta=0.5)
    # A product with the condition as a number: an infinite X is clipped to -3 and 3, between which X matters.
    sixth = back.op("Mul", back.op("Clip", x, like(back, -3, x), like(back, 3, x)), like(back, 1 / 6, x))
    inside = back.cast(_inside(back, h), dtype_of(back.dY))
    return [back.times(back.dY, back.op("Add", h, back.op("Mul", sixth, inside)))]


@gradient("Gelu", versions=(20,), attributes={"approximate": ("none", "tanh")})
@gradient("Gelu", domain=MICROSOFT)
def gelu(back: Backward) -> Gradients:
    """GeluGrad, or FastGeluGrad for the approximation by tanh; of ONNX's op and of ORT's."""
    op_types = {"none": "GeluGrad", "tanh": "FastGeluGrad"}
    return [back.microsoft(op_types[back.attribute("approximate", "none")], back.dY, back.x(0))]


@gradient("QuickGelu", domain=MICROSOFT, attributes=ALPHA)
def quick_gelu(back: Backward) -> Gradients:
    """QuickGeluGrad, with the alpha of the forward node."""
    return [back.microsoft("QuickGeluGrad", back.dY, back.x(0), **back.attributes())]


@gradient("Swish", versions=(24,), attributes=ALPHA)
def swish(back: Backward) -> Gradients:
    """dX = dY s (1 + z (1 - s)), s = sigmoid z, z = alpha X, where Y = X s.

    Beyond 1000 the factor is 0 or 1 in any type, and an infinite z would give NaN.
    """
    x, unit = back.x(0), like(back, 1, back.dY)
    z = back.op("Mul", x, like(back, back.attribute("alpha", 1.0), x))
    z = back.op("Clip", z, like(back, -1000, x), like(back, 1000, x))
    s = sigmoid_of(back, z, dtype_of(back.dY))
    bend = back.op("Mul", z, back.op("Sub", unit, s))
    return [back.times(back.dY, back.op("Mul", s, back.op("Add", unit, bend)))]


@gradient("BiasGelu", domain=MICROSOFT, inputs=(0, 1))
def bias_gelu(back: Backward) -> Gradients:
    """dX = BiasGeluGrad_dX, dB the same, summed to its shape."""
    return _of_biased(back, "BiasGeluGrad_dX")


@gradient("FastGelu", domain=MICROSOFT, inputs=(0, 1))
def fast_gelu(back: Backward) -> Gradients:
    """dX = FastGeluGrad, or with a bias BiasFastGeluGrad_dX, and dB the same, summed to its shape."""
    if back.has(1):
        return _of_biased(back, "BiasFastGeluGrad_dX")
    return [back.microsoft("FastGeluGrad", back.dY, back.x(0))]


def _of_exponential(back: Backward, alpha: float, slope: float) -> Gradients:
    """Gradient of functions linear above 0 and alpha (exp X - 1) below; at 0 by the framework's convention."""
    y = back.y()
    if alpha == slope == 1:
        result = back.op("Add", back.op("Min", y, like(back, 0, y)), like(back, 1, y))
    else:
        falling = back.op("Add", y, like(back, alpha, y))
        result = back.op("Where", _rising(back), like(back, slope, y), falling)
    return [back.times(back.dY, result)]


def _of_biased(back: Backward, op_type: str) -> Gradients:
    x, bias = back.x(0), back.x(1)
    dX = back.microsoft(op_type, back.dY, x, bias)
    return [dX, sum_to(back, dX, bias, x) if back.needs(1) else None]


def _rising(back: Backward) -> ir.Value:
    """Computes X > 0; or X >= 0, by the framework's convention."""
    x = back.x(0)
    return back.op("GreaterOrEqual", x, like(back, 0, x)) if back.tie == "right" else _positive(back, x)


def _positive(back: Backward, x: ir.Value) -> ir.Value:
    return back.op("Greater", x, like(back, 0, x))


def _inside(back: Backward, y: ir.Value) -> ir.Value:
    """Computes 0 < y < 1: the condition that y is not cut off at 0 or 1."""
    zero, unit = like(back, 0, back.dY), like(back, 1, back.dY)
    return back.op("And", back.op("Greater", y, zero), back.op("Less", y, unit))
