"""Gradients of activations in standard ONNX."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bngrad.graph.node_reader import constant_of, dtype_of, is_off, like
from bngrad.opset.known_shapes import known_shape, may_be_equal, shape_text
from bngrad.opset.op_attributes import ALPHA, ANY
from bngrad.passes.lower.lowering import lowering

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.passes.lower.lowering import Outputs
    from bngrad.passes.lower.site import Site


def refusal(node: ir.Node) -> str | None:
    """Refuses a dY of another shape than the activation's input or output."""
    shapes = [shape for value in node.inputs[:2] if (shape := known_shape(value)) is not None]
    if len(shapes) == 2 and not may_be_equal(*shapes):
        return (
            f"its tensors have the shapes {shape_text(shapes[0])} and {shape_text(shapes[1])}; expected one shape"
        )
    return None


def biased_refusal(node: ir.Node) -> str | None:
    """Refuses the same, and a bias whose dimensions are neither the last ones of X nor 1."""
    x, bias = (known_shape(value) for value in (*node.inputs, None, None)[1:3])
    if x is not None and bias is not None:
        pairs = list(zip(reversed(bias), reversed(x), strict=False))
        if len(bias) > len(x) or any(
            isinstance(b, int) and isinstance(n, int) and b not in (1, n) for b, n in pairs
        ):
            got = f"its bias has the shape {shape_text(bias)}, its X {shape_text(x)}"
            return f"{got}; expected the last dimensions of X"
    return refusal(node)


@lowering("ReluGrad", refusal=refusal)
def relu_grad(site: Site) -> Outputs:
    """ReluGrad(dY, Y) -> dX: dY where Y > 0, else 0.

    A product with the mask as a number is faster than Where. A NaN in dY stays NaN.
    """
    dY, y = site.x(0), site.x(1)
    positive = site.op("Greater", y, like(site, 0, y))
    return [site.op("Mul", dY, site.cast(positive, dtype_of(y)))]


@lowering("LeakyReluGrad", refusal=refusal, attributes=ALPHA)
def leaky_relu_grad(site: Site) -> Outputs:
    """LeakyReluGrad(dY, Y) {alpha} -> dX: dY where Y > 0, else alpha dY."""
    dY, y = site.x(0), site.x(1)
    positive = site.op("Greater", y, like(site, 0, y))
    return [site.op("Where", positive, dY, site.op("Mul", dY, like(site, site.attribute("alpha", 0.01), y)))]


@lowering("SigmoidGrad", refusal=refusal)
def sigmoid_grad(site: Site) -> Outputs:
    """SigmoidGrad(dY, Y) -> dX = dY Y (1 - Y)."""
    dY, y = site.x(0), site.x(1)
    return [site.op("Mul", site.op("Mul", dY, y), site.op("Sub", like(site, 1, y), y))]


@lowering("TanhGrad", refusal=refusal)
def tanh_grad(site: Site) -> Outputs:
    """TanhGrad(dY, Y) -> dX = dY (1 - Y^2)."""
    dY, y = site.x(0), site.x(1)
    return [site.op("Mul", dY, site.op("Sub", like(site, 1, y), site.op("Mul", y, y)))]


@lowering("GeluGrad", refusal=refusal, attributes={"approximate": ("none",)})
def gelu_grad(site: Site) -> Outputs:
    """GeluGrad(dY, X) -> dX = dY (Phi(X) + X phi(X)), Phi the normal distribution and phi its density."""
    return [_gelu_grad(site, site.x(0), site.x(1))]


@lowering("BiasGeluGrad_dX", refusal=biased_refusal)
def bias_gelu_grad(site: Site) -> Outputs:
    """BiasGeluGrad_dX(dY, X, B) -> GeluGrad(dY, X + B)."""
    return [_gelu_grad(site, site.x(0), _biased(site))]


@lowering("FastGeluGrad", refusal=refusal)
def fast_gelu_grad(site: Site) -> Outputs:
    """FastGeluGrad(dY, X) -> dX = dY / 2 (1 + t + X t'), t = tanh(sqrt(2 / pi) (X + 0.044715 X^3))."""
    return [_fast_gelu_grad(site, site.x(0), site.x(1))]


@lowering("BiasFastGeluGrad_dX", refusal=biased_refusal)
def bias_fast_gelu_grad(site: Site) -> Outputs:
    """BiasFastGeluGrad_dX(dY, X, B) -> FastGeluGrad(dY, X + B)."""
    return [_fast_gelu_grad(site, site.x(0), _biased(site))]


@lowering("QuickGeluGrad", refusal=refusal, attributes=ALPHA)
def quick_gelu_grad(site: Site) -> Outputs:
    """QuickGeluGrad(dY, X) {alpha} -> dX = dY s (1 + z (1 - s)), s = sigmoid z, z = alpha X."""
    dY, x = site.x(0), site.x(1)
    unit = like(site, 1, x)
    z = site.op("Mul", x, like(site, site.attribute("alpha", 1.702), x))
    # Beyond 1000 the result is 0 or dY in any type, and an infinite z would give NaN.
    z = site.op("Clip", z, like(site, -1000, x), like(site, 1000, x))
    s = site.op("Sigmoid", z)
    bend = site.op("Mul", z, site.op("Sub", unit, s))
    return [site.op("Mul", site.op("Mul", dY, s), site.op("Add", unit, bend))]


@lowering("DropoutGrad", refusal=refusal, attributes={"seed": ANY})
def dropout_grad(site: Site) -> Outputs:
    """DropoutGrad(dY, mask, ratio, training_mode) -> dX = dY mask / (1 - ratio), or dY if not in training mode.

    ratio is 0.5 and training_mode false where they are left out. ORT-training 1.19.2 takes training_mode for true.
    """
    dY, mask, training = site.x(0), site.x(1), site.optional(3)
    if training is None or is_off(training):
        return [dY]
    ratio = site.optional(2) or like(site, 0.5, dY)
    # Out of training mode nothing is dropped, and the mask is all true.
    dropped = (
        ratio if constant_of(training) is not None else site.op("Mul", ratio, site.cast(training, dtype_of(ratio)))
    )
    kept = site.op("Sub", like(site, 1, ratio), dropped)
    scale = site.cast(site.op("Reciprocal", kept), dtype_of(dY))
    return [site.op("Mul", site.op("Mul", dY, site.cast(mask, dtype_of(dY))), scale)]


def _biased(site: Site) -> ir.Value:
    """X + B, the second and the third input."""
    result = site.op("Add", site.x(1), site.x(2))
    result.dtype = dtype_of(site.x(1))
    return result


def _gelu_grad(site: Site, dY: ir.Value, x: ir.Value) -> ir.Value:
    """dY / 2 (1 + erf s + 2 / sqrt(pi) s exp(-s^2)) with s = x / sqrt(2).

    Beyond 40 that is 0 or dY in any type, and an infinite s would give NaN.
    """
    s = site.op("Mul", x, like(site, math.sqrt(0.5), x))
    s = site.op("Clip", s, like(site, -40, x), like(site, 40, x))
    bell = site.op("Exp", site.op("Neg", site.op("Mul", s, s)))
    slope = site.op("Mul", site.op("Mul", s, bell), like(site, 2 / math.sqrt(math.pi), x))
    twice = site.op("Add", site.op("Add", site.op("Erf", s), like(site, 1, x)), slope)
    return site.op("Mul", site.op("Mul", dY, like(site, 0.5, x)), twice)


def _fast_gelu_grad(site: Site, dY: ir.Value, x: ir.Value) -> ir.Value:
    """With c = sqrt(2 / pi): t' = (1 - t^2) c (1 + 3 * 0.044715 x^2), and t the tanh of x c (1 + 0.044715 x^2).

    Beyond 16 t is 1 or -1 in any type, and an infinite x^3 would make t' NaN.
    """
    c, unit = math.sqrt(2 / math.pi), like(site, 1, x)
    x = site.op("Clip", x, like(site, -16, x), like(site, 16, x))
    x.dtype = dtype_of(unit)
    square = site.op("Mul", x, x)
    inner = site.op("Add", site.op("Mul", square, like(site, c * 0.044715, x)), like(site, c, x))
    t = site.op("Tanh", site.op("Mul", x, inner))
    outer = site.op("Add", site.op("Mul", square, like(site, 3 * c * 0.044715, x)), like(site, c, x))
    bend = site.op("Mul", site.op("Sub", unit, site.op("Mul", t, t)), site.op("Mul", x, outer))
    twice = site.op("Add", site.op("Add", unit, t), bend)
    return site.op("Mul", site.op("Mul", dY, like(site, 0.5, x)), twice)
