"""Arithmetic of several operands, which are broadcast against each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.autodiff.rule import for_each_input, gradient
from bngrad.graph.batch_norm_terms import cast_like, statistics_dtype
from bngrad.graph.guards import zero_where_zero
from bngrad.graph.node_reader import constant_of, dtype_of, like
from bngrad.graph.signs import is_nonzero, is_positive, is_singular, may_overflow
from bngrad.opset.op_attributes import FLAG
from bngrad.opset.ort_dialect import MICROSOFT

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients


@gradient("Add", inputs=(0, 1), versions=(14,))
@gradient("Sum", inputs=None, versions=(13,))
def add(back: Backward) -> Gradients:
    """dA = dB = dY, for any number of summands."""
    return for_each_input(back, lambda _: back.dY)


@gradient("Mean", inputs=None, versions=(13,))
def mean(back: Backward) -> Gradients:
    """dA = dB = dY / n, for any number n of summands."""
    share = back.op("Div", back.dY, like(back, len(back.node.inputs), back.dY))
    return for_each_input(back, lambda _: share)


@gradient("Sub", inputs=(0, 1), versions=(14,))
def sub(back: Backward) -> Gradients:
    """dA = dY, dB = -dY."""
    return for_each_input(back, lambda index: back.op("Neg", back.dY) if index else back.dY)


@gradient("Mul", inputs=(0, 1), versions=(14,))
def mul(back: Backward) -> Gradients:
    """dA = dY B, dB = dY A."""

    def flow(index: int) -> ir.Value:
        other = back.x(1 - index)
        return back.times(back.dY, other, singular=may_overflow(other))

    return for_each_input(back, flow)


@gradient("Div", inputs=(0, 1), versions=(14,))
def div(back: Backward) -> Gradients:
    """dA = dY / B; with dB = -dY A / B^2 it is ORT's DivGrad."""
    if not back.needs(1) or back.unbounded:
        a, b = back.x(0), back.x(1)
        dA = back.op("Div", back.dY, b)
        if not is_nonzero(b):
            dA = zero_where_zero(back, back.dY, dA)
        return for_each_input(
            back,
            lambda index: back.op("Neg", back.times(dA, back.op("Div", a, b), singular=True)) if index else dA,
        )
    names = ["dA" if back.needs(0) else "", "dB"]
    dA, dB = back.outputs_of("DivGrad", back.dY, back.x(0), back.x(1), outputs=names, domain=MICROSOFT)
    return [dA if dA.name else None, dB]


@gradient("Mod", inputs=(0, 1), versions=(13, 28), attributes={"fmod": FLAG})
def mod(back: Backward) -> Gradients:
    """dA = dY, dB = -dY (A - Y) / B: the quotient, rounded down or with fmod toward 0, which is constant."""
    a, b = back.x(0), back.x(1)
    dtype = statistics_dtype(a)

    def flow(index: int) -> ir.Value:
        if not index:
            return back.dY
        # Rounded, because the difference may have lost digits; in 16 bits it would have lost too many.
        product = back.op("Sub", back.cast(a, dtype), back.cast(back.y(), dtype))
        quotient = back.op("Round", back.op("Div", product, back.cast(b, dtype)))
        return back.op("Neg", back.times(back.dY, cast_like(back, quotient, dtype, a), singular=not is_nonzero(b)))

    return for_each_input(back, flow)


@gradient("Pow", inputs=(0, 1), versions=(15,))
def power(back: Backward) -> Gradients:
    """dA = dY B A^(B - 1), which is 0 where B is 0; dB = dY Y log A, which is 0 where A is 0.

    B may have another type than A.
    """
    a, b = back.x(0), back.x(1)
    number = constant_of(b)

    def flow(index: int) -> ir.Value:
        if index:
            log = back.op("Log", back.op("Where", back.op("Equal", a, like(back, 0, a)), like(back, 1, a), a))
            slope = back.op("Mul", back.y(), log)
            return back.cast(back.times(back.dY, slope, singular=not is_positive(a)), dtype_of(b))
        if number is not None and number.size == 1:
            return _power_of(back, a, float(number.item()))
        exponent = back.cast(b, dtype_of(a))
        # B - 1, but 0 for B = 0: else the slope is 0 times the reciprocal of A, which may be 0 too.
        less = back.op("Sub", exponent, back.op("Abs", back.op("Sign", exponent)))
        slope = back.op("Mul", exponent, back.op("Pow", a, less))
        return back.times(back.dY, slope, singular=is_singular(back.node))

    return for_each_input(back, flow)


def _power_of(back: Backward, a: ir.Value, exponent: float) -> ir.Value:
    """Computes dA of A^B for one number B: without a power, which takes ten times a product, for common B."""
    if exponent == 1:
        return back.dY
    scaled = back.times(back.dY, like(back, exponent, a))
    if exponent == 0:
        return scaled
    power = a if exponent == 2 else back.op("Pow", a, like(back, exponent - 1, a))
    return back.times(scaled, power, singular=is_singular(back.node))
