"""Arithmetic, comparisons and choices, element by element."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bngrad.torch.autograd.table import op

if TYPE_CHECKING:
    from bngrad.autodiff.ties import Tie

for _name, _function in {
    "Acos": torch.acos,
    "Acosh": torch.acosh,
    "Asin": torch.asin,
    "Asinh": torch.asinh,
    "Atan": torch.atan,
    "Atanh": torch.atanh,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "IsNaN": torch.isnan,
    "Log": torch.log,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal,
    "Round": torch.round,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Sqrt": torch.sqrt,
    "Tan": torch.tan,
}.items():
    op(_name)(_function)

for _name, _function in {
    "Add": torch.add,
    "And": torch.logical_and,
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Mul": torch.mul,
    "Or": torch.logical_or,
    "Sub": torch.sub,
    "Xor": torch.logical_xor,
}.items():
    op(_name, since=7)(_function)


@op("Abs")
def absolute(x: Tensor, *, tie: Tie = "stop") -> Tensor:
    """X without its sign."""
    return torch.where(x >= 0, x, -x) if tie == "right" else torch.abs(x)


@op("Div", since=7)
def div(a: Tensor, b: Tensor) -> Tensor:
    """A / b; integers are rounded towards zero."""
    return a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


@op("Pow", since=7)
def power(x: Tensor, exponent: Tensor) -> Tensor:
    """X to the exponent, of the type of x."""
    return torch.pow(x, exponent).to(x.dtype)


@op("Mod")
def mod(a: Tensor, b: Tensor, *, fmod: int = 0) -> Tensor:
    """The remainder, with the sign of b, or with fmod that of a."""
    return torch.fmod(a, b) if fmod else torch.remainder(a, b)


@op("Sum", since=8)
def total(*terms: Tensor) -> Tensor:
    """The sum of all inputs."""
    return reduce(torch.add, terms)


@op("Mean", since=8)
def mean(*terms: Tensor) -> Tensor:
    """The mean of all inputs."""
    return reduce(torch.add, terms) / len(terms)


@op("Max", since=8)
def maximum(*terms: Tensor, tie: Tie = "split") -> Tensor:
    """The largest of all inputs."""
    if tie != "split" and len(terms) == 2:
        x, limit = terms
        return torch.where(x < limit if tie == "pass" else x <= limit, limit, x)
    return reduce(torch.maximum, terms)


@op("Min", since=8)
def minimum(*terms: Tensor, tie: Tie = "split") -> Tensor:
    """The smallest of all inputs."""
    if tie != "split" and len(terms) == 2:
        x, limit = terms
        return torch.where(x > limit if tie == "pass" else x >= limit, limit, x)
    return reduce(torch.minimum, terms)


@op("Where")
def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """X where the condition holds, else y."""
    return torch.where(condition, x, y)


@op("Clip", since=11)
def clip(x: Tensor, low: Tensor | None = None, high: Tensor | None = None, *, tie: Tie = "pass") -> Tensor:
    """X between two scalars."""
    raised = x.clone() if low is None else maximum(x, low, tie=tie)
    return raised if high is None else minimum(raised, high, tie=tie)
