"""The gradients of TensorFlow's activations and other elementwise ops.

The orders of the inputs are TensorFlow's: mostly (g, f), but (f, g) at the end of the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bngrad.graph.node_reader import dtype_of
from bngrad.opset.op_attributes import ALPHA
from bngrad.opset.ort_dialect import MICROSOFT
from bngrad.passes.imports.tensorflow.rule import Rule
from bngrad.passes.lower.activation import refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnx_ir as ir

    from bngrad.passes.lower.site import Site

_SELU_SCALE = 1.0507009873554804934193349852946
_SELU_SCALE_ALPHA = 1.7580993408473768599402175208123


class _Terms(NamedTuple):
    """The inputs of a gradient."""

    site: Site
    g: ir.Value
    """The gradient with respect to the output of the op."""
    f: ir.Value
    """The input of the op, or its output."""

    def op(self, op_type: str, *operands: ir.Value | float) -> ir.Value:
        """Inserts a node; numbers become constants."""
        values = [
            self.site.constant(operand, dtype_of(self.f)) if isinstance(operand, int | float) else operand
            for operand in operands
        ]
        return self.site.op(op_type, *values)

    def where_negative(self, added: float, factor: float) -> ir.Value:
        """Returns g (f + added) where f < 0, else factor g."""
        below = self.op("Mul", self.g, self.op("Add", self.f, added))
        above = self.g if factor == 1 else self.op("Mul", self.g, factor)
        return self.op("Where", self.op("Less", self.f, 0), below, above)


def _relu6(terms: _Terms) -> ir.Value:
    """G where 0 < f < 6, else 0."""
    inside = terms.op("And", terms.op("Greater", terms.f, 0), terms.op("Less", terms.f, 6))
    return terms.op("Where", inside, terms.g, 0)


def _softsign(terms: _Terms) -> ir.Value:
    """G / (1 + abs f)^2."""
    root = terms.op("Add", terms.op("Abs", terms.f), 1)
    return terms.op("Div", terms.g, terms.op("Mul", root, root))


def _sigmoid(y: _Terms) -> ir.Value:
    return y.op("Mul", y.f, y.op("Sub", 1, y.f))


def _tanh(y: _Terms) -> ir.Value:
    return y.op("Sub", 1, y.op("Mul", y.f, y.f))


def _rsqrt(y: _Terms) -> ir.Value:
    return y.op("Mul", y.op("Mul", -0.5, y.f), y.op("Mul", y.f, y.f))


def _reciprocal(y: _Terms) -> ir.Value:
    return y.op("Neg", y.op("Mul", y.f, y.f))


_OF_FEATURES: Mapping[str, Callable[[_Terms], ir.Value]] = {
    "Relu6Grad": _relu6,
    "SoftplusGrad": lambda terms: terms.op("Mul", terms.g, terms.op("Sigmoid", terms.f)),
    "SoftsignGrad": _softsign,
}
_OF_OUTPUTS: Mapping[str, Callable[[_Terms], ir.Value]] = {
    "EluGrad": lambda terms: terms.where_negative(1, 1),
    "SeluGrad": lambda terms: terms.where_negative(_SELU_SCALE_ALPHA, _SELU_SCALE),
}
_SLOPES: Mapping[str, Callable[[_Terms], ir.Value]] = {
    "SigmoidGrad": _sigmoid,
    "TanhGrad": _tanh,
    "SqrtGrad": lambda y: y.op("Div", 0.5, y.f),
    "RsqrtGrad": _rsqrt,
    "InvGrad": _reciprocal,
    "ReciprocalGrad": _reciprocal,
}
"""The factor of g, a function of the output."""


def _times_slope(slope: Callable[[_Terms], ir.Value]) -> Callable[[Site], Sequence[ir.Value]]:
    def rewrite(site: Site) -> Sequence[ir.Value]:
        return [site.op("Mul", site.x(1), slope(_Terms(site, site.x(1), site.x(0))))]

    return rewrite


def _of_terms(gradient: Callable[[_Terms], ir.Value]) -> Callable[[Site], Sequence[ir.Value]]:
    return lambda site: [gradient(_Terms(site, site.x(0), site.x(1)))]


def _relu_grad(site: Site) -> Sequence[ir.Value]:
    """ReluGrad of ONNX Runtime, which may be fused with the gradient of a batch norm."""
    (dX,) = site.outputs_of("ReluGrad", site.x(0), site.x(1), outputs=["dX"], domain=MICROSOFT)
    dX.type, dX.shape = site.x(0).type, site.x(0).shape
    return [dX]


def _leaky_relu_grad(site: Site) -> Sequence[ir.Value]:
    """LeakyReluGrad of ONNX Runtime."""
    alpha = site.attribute("alpha", 0.2)
    (dX,) = site.outputs_of("LeakyReluGrad", site.x(0), site.x(1), outputs=["dX"], domain=MICROSOFT, alpha=alpha)
    dX.dtype = dtype_of(site.x(0))
    return [dX]


_FEATURES = ("gradients", "features")
RULES = {
    "ReluGrad": Rule(_relu_grad, refusal, inputs=_FEATURES),
    "LeakyReluGrad": Rule(_leaky_relu_grad, refusal, ALPHA, _FEATURES),
    **{name: Rule(_of_terms(of), refusal, inputs=_FEATURES) for name, of in _OF_FEATURES.items()},
    **{name: Rule(_of_terms(of), refusal, inputs=("gradients", "outputs")) for name, of in _OF_OUTPUTS.items()},
    **{name: Rule(_times_slope(of), refusal, inputs=("y", "dy")) for name, of in _SLOPES.items()},
}
