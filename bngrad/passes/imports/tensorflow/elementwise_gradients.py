"""The gradients of TensorFlow's activations and other elementwise ops.

g is the gradient of the output y of the op, f what the op reads. The orders of the inputs are TensorFlow's: mostly
(g, f or y), but (y, g) at the end of the table.

============================================ ===================================================================
op                                           gradient
============================================ ===================================================================
ReluGrad(g, f or y)                          g where it is > 0, else 0
Relu6Grad(g, f or y)                         g where it is > 0 and < 6, else 0
LeakyReluGrad(g, f) {alpha = 0.2}            g where f > 0, else alpha g
EluGrad(g, y)                                g where y >= 0, else g (y + 1)
SeluGrad(g, y)                               scale g where y >= 0, else g (y + scale alpha)
SoftplusGrad(g, f)                           g / (1 + exp(-f))
SoftsignGrad(g, f)                           g / (1 + abs f)^2
SigmoidGrad(y, g)                            g y (1 - y)
TanhGrad(y, g)                               g (1 - y^2)
SqrtGrad(y, g)                               g / (2 y)
RsqrtGrad(y, g)                              -g y^3 / 2
InvGrad(y, g), ReciprocalGrad(y, g)          -g y^2
============================================ ===================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.graph.node_reader import dtype_of, like
from bngrad.opset.op_attributes import ALPHA
from bngrad.opset.ort_dialect import MICROSOFT
from bngrad.passes.imports.tensorflow.gradients import tensorflow_op
from bngrad.passes.lower.activation import refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import onnx_ir as ir

    from bngrad.passes.lower.site import Site

_SELU_SCALE = 1.0507009873554804934193349852946
_SELU_SCALE_ALPHA = 1.7580993408473768599402175208123


@tensorflow_op("ReluGrad", "gradients", "features", refusal=refusal)
def relu_grad(site: Site) -> Sequence[ir.Value]:
    """ReluGrad of ONNX Runtime, which may be fused with the gradient of a batch norm."""
    (dX,) = site.outputs_of("ReluGrad", site.x(0), site.x(1), outputs=["dX"], domain=MICROSOFT)
    dX.type, dX.shape = site.x(0).type, site.x(0).shape
    return [dX]


@tensorflow_op("LeakyReluGrad", "gradients", "features", refusal=refusal, attributes=ALPHA)
def leaky_relu_grad(site: Site) -> Sequence[ir.Value]:
    """LeakyReluGrad of ONNX Runtime."""
    alpha = site.attribute("alpha", 0.2)
    (dX,) = site.outputs_of("LeakyReluGrad", site.x(0), site.x(1), outputs=["dX"], domain=MICROSOFT, alpha=alpha)
    dX.dtype = dtype_of(site.x(0))
    return [dX]


@tensorflow_op("Relu6Grad", "gradients", "features", refusal=refusal)
def relu6_grad(site: Site) -> Sequence[ir.Value]:
    """See the table."""
    g, f = site.x(0), site.x(1)
    inside = site.op("And", site.op("Greater", f, like(site, 0, f)), site.op("Less", f, like(site, 6, f)))
    return [site.op("Where", inside, g, like(site, 0, g))]


@tensorflow_op("EluGrad", "gradients", "outputs", refusal=refusal)
def elu_grad(site: Site) -> Sequence[ir.Value]:
    """See the table."""
    return [_where_negative(site, 1, 1)]


@tensorflow_op("SeluGrad", "gradients", "outputs", refusal=refusal)
def selu_grad(site: Site) -> Sequence[ir.Value]:
    """See the table."""
    return [_where_negative(site, _SELU_SCALE_ALPHA, _SELU_SCALE)]


@tensorflow_op("SoftplusGrad", "gradients", "features", refusal=refusal)
def softplus_grad(site: Site) -> Sequence[ir.Value]:
    """See the table."""
    return [site.op("Mul", site.x(0), site.op("Sigmoid", site.x(1)))]


@tensorflow_op("SoftsignGrad", "gradients", "features", refusal=refusal)
def softsign_grad(site: Site) -> Sequence[ir.Value]:
    """See the table."""
    root = site.op("Add", site.op("Abs", site.x(1)), like(site, 1, site.x(1)))
    return [site.op("Div", site.x(0), site.op("Mul", root, root))]


def _of_output(slope: Callable[[Site, ir.Value], ir.Value]) -> Callable[[Site], Sequence[ir.Value]]:
    """The rule of a gradient that is g times a function of y."""

    def rewrite(site: Site) -> Sequence[ir.Value]:
        return [site.op("Mul", site.x(1), slope(site, site.x(0)))]

    return rewrite


def _sigmoid(site: Site, y: ir.Value) -> ir.Value:
    return site.op("Mul", y, site.op("Sub", like(site, 1, y), y))


def _tanh(site: Site, y: ir.Value) -> ir.Value:
    return site.op("Sub", like(site, 1, y), site.op("Mul", y, y))


def _sqrt(site: Site, y: ir.Value) -> ir.Value:
    return site.op("Div", like(site, 0.5, y), y)


def _rsqrt(site: Site, y: ir.Value) -> ir.Value:
    return site.op("Mul", site.op("Mul", like(site, -0.5, y), y), site.op("Mul", y, y))


def _reciprocal(site: Site, y: ir.Value) -> ir.Value:
    return site.op("Neg", site.op("Mul", y, y))


for _op_type, _slope in {
    "SigmoidGrad": _sigmoid,
    "TanhGrad": _tanh,
    "SqrtGrad": _sqrt,
    "RsqrtGrad": _rsqrt,
    "InvGrad": _reciprocal,
    "ReciprocalGrad": _reciprocal,
}.items():
    tensorflow_op(_op_type, "y", "dy", refusal=refusal)(_of_output(_slope))


def _where_negative(site: Site, added: float, factor: float) -> ir.Value:
    """G (y + added) where y < 0, else factor g."""
    g, y = site.x(0), site.x(1)
    below = site.op("Mul", g, site.op("Add", y, like(site, added, y)))
    above = g if factor == 1 else site.op("Mul", g, like(site, factor, g))
    return site.op("Where", site.op("Less", y, like(site, 0, y)), below, above)
