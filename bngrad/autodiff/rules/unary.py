"""Elementwise functions of one operand; activations are in `activation.py`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bngrad.autodiff.rule import NEW_TYPES, gradient
from bngrad.graph.guards import zero_where_zero
from bngrad.graph.node_reader import dtype_of, like
from bngrad.graph.signs import is_singular
from bngrad.opset.op_attributes import ANY, AXIS, RANDOM, ROUNDING

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients


@gradient("Bernoulli", inputs=(), zero=(0,), versions=(15, 22), attributes=RANDOM)
@gradient("Ceil", inputs=(), zero=(0,), versions=(13,))
@gradient("EyeLike", inputs=(), zero=(0,), versions=(9, 22), attributes={"dtype": ANY, "k": ANY})
@gradient("Floor", inputs=(), zero=(0,), versions=(13,))
@gradient("Hardmax", inputs=(), zero=(0,), versions=(13,), attributes=AXIS)
@gradient(
    "RandomNormalLike", inputs=(), zero=(0,), versions=(1, 22), attributes={"mean": ANY, "scale": ANY, **RANDOM}
)
@gradient(
    "RandomUniformLike", inputs=(), zero=(0,), versions=(1, 22), attributes={"high": ANY, "low": ANY, **RANDOM}
)
@gradient("Round", inputs=(), zero=(0,), versions=(11, 22))
@gradient("Sign", inputs=(), zero=(0,), versions=(13,))
def nothing(_back: Backward) -> Gradients:
    """No gradient: the output is random, or constant between jumps."""
    return []


@gradient("Identity", versions=(16, 19, *NEW_TYPES))
def identity(back: Backward) -> Gradients:
    """dX = dY."""
    return [back.dY]


@gradient("Cast", versions=(13, 19, 21, 23, 24, 25, 28), attributes={"to": ANY, **ROUNDING})
@gradient("CastLike", zero=(1,), versions=(15, 19, 21, 23, 24, 25), attributes=ROUNDING)
def cast(back: Backward) -> Gradients:
    """dX = dY in the type of X. Only between floats: other types have no gradient."""
    return [back.cast(back.dY, dtype_of(back.x(0)))]


@gradient("Neg", versions=(13,))
def neg(back: Backward) -> Gradients:
    """dX = -dY."""
    return [back.op("Neg", back.dY)]


@gradient("Abs", versions=(13,))
def absolute(back: Backward) -> Gradients:
    """dX = dY sign X, where the sign of 0 is 0; for JAX it is 1."""
    return [of_absolute(back, back.dY)]


def of_absolute(back: Backward, dY: ir.Value) -> ir.Value:
    """Returns the gradient of an absolute value, of which a node is the output or the sum."""
    x = back.x(0)
    if back.tie == "right":
        rising = back.op("GreaterOrEqual", x, like(back, 0, x))
        return back.op("Where", rising, dY, back.op("Neg", dY))
    return back.times(dY, back.op("Sign", x))


@gradient("Reciprocal", versions=(13,))
def reciprocal(back: Backward) -> Gradients:
    """dX = -dY Y^2."""
    return [
        back.op("Neg", back.times(back.dY, back.op("Mul", back.y(), back.y()), singular=is_singular(back.node)))
    ]


@gradient("Sqrt", versions=(13,))
def sqrt(back: Backward) -> Gradients:
    """dX = dY / (2 Y)."""
    return [_over(back, back.op("Mul", back.dY, like(back, 0.5, back.dY)), back.y())]


@gradient("Exp", versions=(13,))
def exp(back: Backward) -> Gradients:
    """dX = dY Y, which may be infinite where X is not."""
    return [back.times(back.dY, back.y(), singular=True)]


@gradient("Log", versions=(13,))
def log(back: Backward) -> Gradients:
    """dX = dY / X."""
    return [_over(back, back.dY, back.x(0))]


@gradient("Sin", versions=(7, 22))
def sin(back: Backward) -> Gradients:
    """dX = dY cos X."""
    return [back.times(back.dY, back.op("Cos", back.x(0)))]


@gradient("Cos", versions=(7, 22))
def cos(back: Backward) -> Gradients:
    """dX = -dY sin X."""
    return [back.op("Neg", back.times(back.dY, back.op("Sin", back.x(0))))]


@gradient("Tan", versions=(7, 22))
def tan(back: Backward) -> Gradients:
    """dX = dY (1 + Y^2), whose square overflows in 16 bits next to a pole."""
    y = back.y()
    slope = back.op("Add", back.op("Mul", y, y), like(back, 1, y))
    return [back.times(back.dY, slope, singular=True)]


@gradient("Atan", versions=(7, 22))
def atan(back: Backward) -> Gradients:
    """dX = dY / (1 + X^2)."""
    x = back.x(0)
    slope = back.op("Reciprocal", back.op("Add", back.op("Mul", x, x), like(back, 1, x)))
    return [back.times(back.dY, slope)]


@gradient("Sinh", versions=(9, 22))
def sinh(back: Backward) -> Gradients:
    """dX = dY cosh X, which may be infinite where X is not."""
    return [back.times(back.dY, back.op("Cosh", back.x(0)), singular=True)]


@gradient("Cosh", versions=(9, 22))
def cosh(back: Backward) -> Gradients:
    """dX = dY sinh X, which may be infinite where X is not."""
    return [back.times(back.dY, back.op("Sinh", back.x(0)), singular=True)]


@gradient("Asin", versions=(7, 22))
def asin(back: Backward) -> Gradients:
    """dX = dY / sqrt(1 - X^2), as a product of roots: next to -1 and 1 the square of X has lost the digits."""
    unit = like(back, 1, back.x(0))
    return [_over(back, back.dY, _root(back, back.op("Sub", unit, back.x(0)), back.op("Add", unit, back.x(0))))]


@gradient("Acos", versions=(7, 22))
def acos(back: Backward) -> Gradients:
    """dX = -dY / sqrt(1 - X^2), as for Asin."""
    (dX,) = asin(back)
    return [back.op("Neg", dX)]


@gradient("Atanh", versions=(9, 22))
def atanh(back: Backward) -> Gradients:
    """dX = dY / (1 - X^2)."""
    unit = like(back, 1, back.x(0))
    divisor = back.op("Mul", back.op("Sub", unit, back.x(0)), back.op("Add", unit, back.x(0)))
    return [_over(back, back.dY, divisor)]


@gradient("Acosh", versions=(9, 22))
def acosh(back: Backward) -> Gradients:
    """dX = dY / sqrt(X^2 - 1), as a product of roots, because the square of X overflows in 16 bits."""
    unit = like(back, 1, back.x(0))
    return [_over(back, back.dY, _root(back, back.op("Sub", back.x(0), unit), back.op("Add", back.x(0), unit)))]


@gradient("Asinh", versions=(9, 22))
def asinh(back: Backward) -> Gradients:
    """dX = dY / sqrt(1 + X^2), which is m sqrt(1 + r^2) for m = max(|X|, 1) and r = min(|X|, 1) / m.

    The square of X overflows in 16 bits.
    """
    unit, size = like(back, 1, back.x(0)), back.op("Abs", back.x(0))
    longer = back.op("Max", size, unit)
    ratio = back.op("Div", back.op("Min", size, unit), longer)
    root = back.op("Sqrt", back.op("Add", back.op("Mul", ratio, ratio), unit))
    return [back.op("Div", back.dY, back.op("Mul", longer, root))]


@gradient("Erf", versions=(13,))
def erf(back: Backward) -> Gradients:
    """dX = dY 2 / sqrt(pi) exp(-X^2)."""
    x = back.x(0)
    bell = back.op("Exp", back.op("Neg", back.op("Mul", x, x)))
    return [back.times(back.dY, back.op("Mul", bell, like(back, 2 / math.sqrt(math.pi), x)))]


def _root(back: Backward, first: ir.Value, second: ir.Value) -> ir.Value:
    """Returns the root of a product, from the roots of its factors."""
    return back.op("Mul", back.op("Sqrt", first), back.op("Sqrt", second))


def _over(back: Backward, dY: ir.Value, divisor: ir.Value) -> ir.Value:
    """Returns dY / divisor; if the node is singular, the divisor may be 0, and the result is 0 where dY is 0."""
    quotient = back.op("Div", dY, divisor)
    return zero_where_zero(back, dY, quotient, typed=back.dY) if is_singular(back.node) else quotient
