"""Gradients of arithmetic in standard ONNX."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.graph.broadcasting import sum_to
from bngrad.graph.guards import zero_where_zero
from bngrad.graph.signs import is_nonzero
from bngrad.passes.lower.lowering import lowering

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.graph.builder import NodeMaker
    from bngrad.passes.lower.lowering import Outputs
    from bngrad.passes.lower.site import Site


@lowering("DivGrad")
def div_grad(site: Site) -> Outputs:
    """DivGrad(dY, A, B) -> dA = dY / B, dB = -dY A / B^2, each summed to the shape of its operand.

    Where dY is 0, so are both, even if B is 0 too.
    """
    dY, a, b = site.x(0), site.x(1), site.x(2)
    dA = site.op("Div", dY, b)
    if not is_nonzero(b):
        dA = zero_where_zero(site, dY, dA, typed=b)
    result: list[ir.Value | None] = [None, None]
    if site.has_output(0):
        result[0] = sum_to(site, dA, a, dY, others=[b], axes_of=_repeated_axes)
    if site.has_output(1):
        dB = site.op("Neg", site.op("Mul", dA, site.op("Div", a, b)))
        if not is_nonzero(b):
            dB = zero_where_zero(site, dY, dB, typed=b)
        result[1] = sum_to(site, dB, b, dY, others=[a], axes_of=_repeated_axes)
    return result


@lowering("BroadcastGradientArgs")
def broadcast_gradient_args(site: Site) -> Outputs:
    """BroadcastGradientArgs(a_shape, b_shape) -> for each, the axes along which it repeats to meet the other."""
    a, b = site.x(0), site.x(1)
    return [
        _repeated_axes(site, a, b) if site.has_output(0) else None,
        _repeated_axes(site, b, a) if site.has_output(1) else None,
    ]


def _repeated_axes(make: NodeMaker, shape: ir.Value, other: ir.Value) -> ir.Value:
    """The axes where the dimension is 1, or a missing leading one, and the other's is not."""
    lengths = [make.op("Shape", shape), make.op("Shape", other)]
    rank = make.op("Max", *lengths)
    zero, unit = make.int64([0]), make.int64(1)
    is_one = []
    for dimensions, length in zip((shape, other), lengths, strict=True):
        missing = make.op("Concat", make.op("Sub", rank, length), zero, axis=0)
        is_one.append(make.op("Equal", make.op("Pad", dimensions, missing, unit), unit))
    repeated = make.op("And", is_one[0], make.op("Not", is_one[1]))
    return make.op("Squeeze", make.op("NonZero", repeated), zero)
