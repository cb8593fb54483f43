"""Functions of one operand that are no activations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bngrad.passes.node_view import dtype_of, like

if TYPE_CHECKING:
    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients


def nothing(_back: Backward) -> Gradients:
    """No gradient: the output is random, or stays the same between the jumps that it makes."""
    return []


def identity(back: Backward) -> Gradients:
    """dX = dY."""
    return [back.dY]


def cast(back: Backward) -> Gradients:
    """dX = dY in the type of X. Only between floats: no other type has a gradient."""
    return [back.cast(back.dY, dtype_of(back.x(0)))]


def neg(back: Backward) -> Gradients:
    """dX = -dY."""
    return [back.op("Neg", back.dY)]


def absolute(back: Backward) -> Gradients:
    """dX = dY sign X, which is 0 at 0."""
    return [back.op("Mul", back.dY, back.op("Sign", back.x(0)))]


def reciprocal(back: Backward) -> Gradients:
    """dX = -dY Y^2."""
    return [back.op("Neg", back.op("Mul", back.dY, back.op("Mul", back.y(), back.y())))]


def sqrt(back: Backward) -> Gradients:
    """dX = dY / (2 Y)."""
    return [back.op("Div", back.op("Mul", back.dY, like(back, 0.5, back.dY)), back.y())]


def exp(back: Backward) -> Gradients:
    """dX = dY Y."""
    return [back.op("Mul", back.dY, back.y())]


def log(back: Backward) -> Gradients:
    """dX = dY / X."""
    return [back.op("Div", back.dY, back.x(0))]


def sin(back: Backward) -> Gradients:
    """dX = dY cos X."""
    return [back.op("Mul", back.dY, back.op("Cos", back.x(0)))]


def cos(back: Backward) -> Gradients:
    """dX = -dY sin X."""
    return [back.op("Neg", back.op("Mul", back.dY, back.op("Sin", back.x(0))))]


def erf(back: Backward) -> Gradients:
    """dX = dY 2 / sqrt(pi) exp(-X^2)."""
    x = back.x(0)
    bell = back.op("Exp", back.op("Neg", back.op("Mul", x, x)))
    return [back.op("Mul", back.dY, back.op("Mul", bell, like(back, 2 / math.sqrt(math.pi), x)))]
