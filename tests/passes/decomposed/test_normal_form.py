"""Polynomials and their atoms: what is equal has one form, and what is not has not."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from bngrad.passes.imports.decomposed.algebra import Algebra
from bngrad.passes.imports.decomposed.axes import Axes
from bngrad.passes.imports.decomposed.constants import meant_number
from bngrad.passes.imports.decomposed.polynomial import add, equal, multiply, number, power_of, ratio, scaled


class Values:
    """x and dY over a batch of 10 and two channels, and a scale of the channels."""

    def __init__(self, batch=10):
        axes = Axes()
        ((n,), (c,)) = axes.layout([batch, 2])
        self.algebra, self.over = Algebra(axes), frozenset([n])
        self.x, self.dy = (self.algebra.leaf(name, frozenset([n, c])) for name in ("x", "dy"))
        self.scale = self.algebra.leaf("scale", frozenset([c]))
        self.count = self.algebra.extent((n,))

    def sum(self, p):
        return self.algebra.sum_over(p, self.over)

    def mean(self, p):
        return self.algebra.product(self.sum(p), self.algebra.power(self.count, -2))

    def product(self, *factors):
        result = number(1.0)
        for factor in factors:
            result = self.algebra.product(result, factor)
        return result

    def square(self, p):
        return self.product(p, p)


def minus(p, q):
    return add(p, q, -1.0)


VARIANCES = {
    "centered": lambda v: v.mean(v.square(minus(v.x, v.mean(v.x)))),
    "of squares": lambda v: minus(v.mean(v.square(v.x)), v.square(v.mean(v.x))),
    "of products": lambda v: v.mean(v.product(v.x, minus(v.x, v.mean(v.x)))),
    "shifted": lambda v: v.mean(v.square(minus(add(v.x, number(3.0)), v.mean(add(v.x, number(3.0)))))),
}


@pytest.mark.parametrize("batch", [10, "N"])
@pytest.mark.parametrize("spelling", VARIANCES)
def test_a_variance_has_one_form(spelling, batch):
    values = Values(batch)
    root = values.algebra.power(add(VARIANCES["centered"](values), number(1e-5)), -1)
    again = values.algebra.power(add(VARIANCES[spelling](values), number(1e-5)), -1)
    assert equal(root, again)
    (variance,) = values.algebra.variances.values()
    assert variance.epsilon == pytest.approx(1e-5)
    assert values.algebra.is_variance(VARIANCES[spelling](values))


NO_VARIANCES = {
    "not centered": lambda v: v.mean(v.square(v.x)),
    "another mean": lambda v: minus(v.mean(v.square(v.x)), v.square(v.mean(v.dy))),
    "added": lambda v: add(v.mean(v.square(v.x)), v.square(v.mean(v.x))),
    "another count": lambda v: minus(scaled(v.sum(v.square(v.x)), 1 / 9), v.square(v.mean(v.x))),
    "negative": lambda v: scaled(VARIANCES["centered"](v), -1.0),
}


@pytest.mark.parametrize("spelling", NO_VARIANCES)
def test_what_is_no_variance_registers_none(spelling):
    values = Values()
    p = NO_VARIANCES[spelling](values)
    assert not values.algebra.is_variance(p)
    values.algebra.power(add(p, number(1e-5)), -1)
    assert not values.algebra.variances


EQUAL = {
    "a factor in front of a sum": (
        lambda v: v.sum(v.product(v.scale, v.dy)),
        lambda v: v.product(v.scale, v.sum(v.dy)),
    ),
    "a sum of a difference": (
        lambda v: v.sum(v.product(v.dy, minus(v.x, v.mean(v.x)))),
        lambda v: minus(v.sum(v.product(v.dy, v.x)), v.product(v.mean(v.x), v.sum(v.dy))),
    ),
    "the sum of centered data": (lambda v: v.sum(minus(v.x, v.mean(v.x))), lambda _: {}),
    "the sum of a constant": (lambda v: v.sum(number(2.0)), lambda v: scaled(v.count, 2.0)),
    "a quotient": (lambda v: v.product(v.x, v.algebra.power(v.scale, -2), v.scale), lambda v: v.x),
    "a root squared": (
        lambda v: v.square(v.algebra.power(add(v.scale, number(1.0)), 1)),
        lambda v: add(v.scale, number(1.0)),
    ),
}


@pytest.mark.parametrize("batch", [10, "N"])
@pytest.mark.parametrize("case", EQUAL)
def test_equal_expressions_have_equal_forms(case, batch):
    values = Values(batch)
    first, second = (make(values) for make in EQUAL[case])
    assert equal(first, second)


def test_the_root_of_a_square_is_no_form():
    values = Values()
    assert values.algebra.power(values.square(values.x), 1) is None
    assert values.algebra.power(scaled(values.x, -1.0), 1) is None


def test_division_by_a_single_term():
    p = add(power_of(0), power_of(1))
    assert ratio(multiply(p, {((2, 2),): 3.0}), p) == (((2, 2),), 3.0)
    assert ratio(p, add(power_of(0), power_of(2))) is None


@pytest.mark.parametrize("number_", [1 / 49, 1 / 802816, -2 / 3, 0.9, 1e-5, 7.0, 0.0])
def test_a_rounded_constant_means_the_simplest_number(number_):
    assert meant_number(float(np.float32(number_)), ir.DataType.FLOAT) == pytest.approx(number_, rel=1e-15)
