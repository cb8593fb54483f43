"""A batch norm in terms of `algebra`: its statistics, its forward pass, its gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bngrad.opset.functions import DOMAIN
from bngrad.passes.imports.decomposed.polynomial import ONE, add, atoms, power_of, times

if TYPE_CHECKING:
    from bngrad.passes.imports.decomposed.algebra import Algebra, Over, Variance
    from bngrad.passes.imports.decomposed.polynomial import Atom, Monomial, Polynomial


class Statistics(NamedTuple):
    """The data, reduced axes, mean and 1 / sqrt(variance + epsilon) of a batch norm."""

    x: Monomial
    over: Over
    mean: Polynomial
    inv_std: Polynomial
    variance: Variance | None
    """The batch's variance; None if mean and inv_std are given."""


class Forward(NamedTuple):
    """A batch norm of x."""

    statistics: Statistics
    scale: Polynomial
    bias: Polynomial
    running_variance: Polynomial | None = None
    """The variance of frozen statistics."""
    epsilon: float = 0.0

    @property
    def key(self) -> object:
        """The fields that identify the batch norm, hashable."""
        scale, bias = (frozenset(form.items()) for form in (self.scale, self.bias))
        return self.statistics.x, self.statistics.over, scale, bias


class Group(NamedTuple):
    """The dX, dscale and dbias of one batch norm and one dY."""

    statistics: Statistics
    dY: Monomial

    @property
    def key(self) -> tuple[Monomial, Monomial, Over]:
        """The fields that identify the gradient, hashable."""
        return self.dY, self.statistics.x, self.statistics.over


class Backward(NamedTuple):
    """The dX of a gradient."""

    group: Group
    scale: Polynomial
    training: bool


class Split(NamedTuple):
    """A form as a sum of batch norms and a rest."""

    forward: list[Forward]
    backward: list[Backward]
    rest: Polynomial

    @property
    def statistics(self) -> list[Statistics]:
        """The statistics of all batch norms."""
        return [*(norm.statistics for norm in self.forward), *(norm.group.statistics for norm in self.backward)]


def given_variance(algebra: Algebra, atom: Atom) -> tuple[Polynomial, float] | None:
    """The variance and the epsilon whose sum an atom is, where the variance is not computed from the data."""
    base = algebra.base(atom)
    if base is None or len(base) != 2 or ONE not in base or base[ONE] < 0:
        return None
    variance = {monomial: value for monomial, value in base.items() if monomial != ONE}
    return (variance, base[ONE]) if all(is_given(algebra, leaf) for leaf in atoms(variance)) else None


def is_given(algebra: Algebra, atom: Atom) -> bool:
    """Returns whether an atom is a leaf that no op of bngrad computes."""
    value = algebra.leaf_of(atom)
    maker = None if value is None else value.producer()
    return value is not None and (maker is None or maker.domain != DOMAIN)


def dscale_of(algebra: Algebra, group: Group) -> Polynomial:
    """(S(dY * x) - mean * S(dY)) * inv_std."""
    x, over, mean, inv_std, _ = group.statistics
    total = algebra.sum_over({times(group.dY, x): 1.0}, over)
    return algebra.product(inv_std, add(total, algebra.product(mean, dbias_of(algebra, group)), -1.0))


def dbias_of(algebra: Algebra, group: Group) -> Polynomial:
    """S(dY)."""
    return algebra.sum_over({group.dY: 1.0}, group.statistics.over)


def batch_statistics(algebra: Algebra, variance: Variance) -> Statistics:
    """The statistics of the batch."""
    mean = algebra.mean(variance.x, variance.over)
    return Statistics(variance.x, variance.over, mean, power_of(variance.atom, -1), variance)


def is_of_channels(algebra: Algebra, form: Polynomial, over: Over) -> bool:
    """Returns whether a form does not vary along the reduced axes."""
    return not any(algebra.varies(monomial) & over for monomial in form)


def divides(x: Monomial, inner: Monomial) -> bool:
    """Returns whether the product `inner` has all factors of `x`."""
    return all(dict(inner).get(atom, 0) >= exponent > 0 for atom, exponent in x)
