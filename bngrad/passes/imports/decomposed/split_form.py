"""Splits a form into batch norms: forward, ``scale * (x - mean) * inv_std + bias``, and backward, the gradient dX.

With S for sums over the reduced axes, N elements each, and P = variance + epsilon::

    Y  = a * (x - mean) + bias                                              a = scale / sqrt(P)
    dX = a * (dY - S(dY) / N - (x - mean) * (S(dY * x) - mean * S(dY)) / (N * P))
    dscale = (S(dY * x) - mean * S(dY)) / sqrt(P);  dbias = S(dY)

A term that only one of these formulas has determines all factors; the formula is then subtracted from the form.
The rest must be free of the batch norm, and may be anything else, such as the gradient of another branch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.passes.imports.decomposed.batch_norm import (
    Backward,
    Forward,
    Group,
    Split,
    Statistics,
    batch_statistics,
    dbias_of,
    divides,
    given_variance,
    is_given,
    is_of_channels,
)
from bngrad.passes.imports.decomposed.polynomial import (
    ONE,
    ROUNDING,
    WHOLE,
    add,
    as_number,
    atoms,
    multiply,
    part,
    power_of,
    ratio,
    scaled,
    times,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bngrad.passes.imports.decomposed.algebra import Algebra, Over, Variance
    from bngrad.passes.imports.decomposed.polynomial import Atom, Monomial, Polynomial


def split(algebra: Algebra, form: Polynomial) -> Split | None:
    """Returns the batch norms that a form adds up; None if it has none, or only parts of one."""
    backward: list[Backward] = []
    for candidate in list(_gradients(algebra, form)):
        backward_match = _backward(algebra, form, *candidate)
        if backward_match is not None:
            backward.append(backward_match[0])
            form = backward_match[1]
    forward: list[Forward] = []
    for atom in sorted(atoms(form) & algebra.variance_of.keys()):
        forward_match = _forward(algebra, form, algebra.variance_of[atom])
        if forward_match is not None:
            forward.append(forward_match[0])
            form = forward_match[1]
    if not forward and not backward:
        return _frozen(algebra, form)
    unfinished = any(atom in atoms(form) for atom in _marks(algebra, forward, backward))
    return None if unfinished else Split(forward, backward, form)


def coefficient(algebra: Algebra, form: Polynomial, of: Monomial, over: Over) -> Polynomial:
    """The coefficient of a product: of all monomials whose factors that vary along the axes are this product."""
    result = {}
    for monomial, value in form.items():
        if _varying(algebra, monomial, over) == of:
            result[times(monomial, of, -1)] = value
    return result


def _gradients(algebra: Algebra, form: Polynomial) -> Iterator[tuple[Monomial, Over, Monomial]]:
    """The x, reduced axes and dY of all terms x * S(dY * x)."""
    seen = set()
    for monomial, _, inner, over in algebra.sums_in(form):
        x = _varying(algebra, monomial, over)
        dY = times(inner, x, -1)
        if x and dY and dY != x and divides(x, inner) and (x, over, dY) not in seen:
            seen.add((x, over, dY))
            yield x, over, dY


def _backward(
    algebra: Algebra, form: Polynomial, x: Monomial, over: Over, dY: Monomial
) -> tuple[Backward, Polynomial] | None:
    """The dX of a batch norm in a form, and the rest of the form; None if there is no dX."""
    count, sizes = algebra.count(over)
    product = ((_only_atom(algebra.sum_over({times(dY, x): 1.0}, over)), WHOLE),)
    of_x = coefficient(algebra, form, x, over)
    by_product = {times(m, product, -1): v for m, v in of_x.items() if set(product) <= set(m)}
    variance = algebra.variances.get((x, over))
    if variance is not None:
        statistics = batch_statistics(algebra, variance)
        a = scaled(by_product, -count, times(sizes, ((variance.atom, WHOLE),)))
        inverse_variance = power_of(variance.atom, -WHOLE)
    else:
        a = coefficient(algebra, form, dY, over)
        given_statistics = _given_statistics(algebra, of_x, by_product, a, (x, over, dY))
        if given_statistics is None:
            return None
        statistics, inverse_variance = given_statistics
    scale = _divided(a, statistics.inv_std)
    if not a or scale is None or not is_of_channels(algebra, a, over):
        return None
    if atoms(scale) & atoms(statistics.inv_std):
        return None
    group = Group(statistics, dY)
    centered = add({x: 1.0}, statistics.mean, -1.0)
    projection = algebra.product(
        algebra.product(centered, inverse_variance),
        add(power_of(product[0][0]), algebra.product(statistics.mean, dbias_of(algebra, group)), -1.0),
    )
    through = scaled(add(dbias_of(algebra, group), projection), 1 / count, times(ONE, sizes, -1))
    rest = add(form, algebra.product(a, add({dY: 1.0}, through, -1.0)), -1.0)
    if atoms(rest) & _marks(algebra, [], [Backward(group, scale, training=True)]):
        return None
    return Backward(group, scale, training=True), rest


def _given_statistics(
    algebra: Algebra,
    of_x: Polynomial,
    by_product: Polynomial,
    a: Polynomial,
    term: tuple[Monomial, Over, Monomial],
) -> tuple[Statistics, Polynomial] | None:
    """The mean and inv_std of a gradient whose forward pass is not in the graph."""
    x, over, dY = term
    count, sizes = algebra.count(over)
    quotient = ratio(by_product, a) if by_product and a else None
    if quotient is None or quotient[1] >= 0:
        return None
    monomial, factor = times(quotient[0], sizes), -quotient[1] * count
    if any(exponent % WHOLE for _, exponent in monomial) or not _is_one_value(algebra, monomial, factor):
        return None
    inv_std = {tuple((atom, exponent // 2) for atom, exponent in monomial): factor**0.5}
    ((total, repeats),) = algebra.sum_over({dY: 1.0}, over).items()
    by_total = {times(m, total, -1): v / repeats for m, v in of_x.items() if set(total) <= set(m)}
    shift = ratio(by_total, by_product) if by_total else None
    if by_total and shift is None:
        return None
    mean = {} if shift is None else {shift[0]: -shift[1]}
    return Statistics(x, over, mean, inv_std, None), {monomial: factor}


def _is_one_value(algebra: Algebra, squared: Monomial, factor: float) -> bool:
    """Returns whether the square of an inv_std is that of one value, or the reciprocal of a given sum."""
    if len(squared) != 1:
        return False
    ((atom, exponent),) = squared
    leaf = algebra.leaf_of(atom) is not None
    return (exponent == 2 * WHOLE and abs(factor - 1) <= ROUNDING) if leaf else exponent == -WHOLE


def _forward(algebra: Algebra, form: Polynomial, variance: Variance) -> tuple[Forward, Polynomial] | None:
    """The Y of a batch norm in a form, and the rest of the form; None if there is no Y."""
    statistics = batch_statistics(algebra, variance)
    of_x = coefficient(algebra, form, variance.x, variance.over)
    a = {monomial: value for monomial, value in of_x.items() if variance.atom in atoms((monomial,))}
    scale = _divided(a, statistics.inv_std)
    if not a or scale is None or variance.atom in atoms(scale):
        return None
    if any(algebra.sum_of(atom) is not None for atom in atoms(scale)):
        return None
    rest = add(form, algebra.product(a, add({variance.x: 1.0}, statistics.mean, -1.0)), -1.0)
    forward = Forward(statistics, scale, {}, epsilon=variance.epsilon)
    if atoms(rest) & _marks(algebra, [forward], []):
        return None
    bias, rest = _bias(algebra, rest, statistics)
    return forward._replace(bias=bias), rest


def _frozen(algebra: Algebra, form: Polynomial) -> Split | None:
    """A form as a batch norm with a given mean and variance, and the rest."""
    for atom in atoms(form):
        variance_and_epsilon = given_variance(algebra, atom)
        if variance_and_epsilon is None:
            continue
        kept = algebra.varies(((atom, 1),))
        data = [_data(algebra, monomial, kept) for monomial in form]
        over = frozenset().union(*map(algebra.varies, data)) - kept
        inv_std = power_of(atom, -1)
        for x in {product for product in data if product}:
            a = {m: v for m, v in coefficient(algebra, form, x, over).items() if atom in atoms((m,))}
            scale = _divided(a, inv_std)
            if not a or scale is None or atom in atoms(scale):
                continue
            shift = {m: v for m, v in form.items() if atom in atoms((m,)) and not algebra.varies(m) & over}
            mean = ratio(shift, a) if shift else None
            if mean is None or not all(is_given(algebra, factor) for factor in atoms((mean[0],))):
                continue
            statistics = Statistics(x, over, {mean[0]: -mean[1]}, inv_std, None)
            centered = add({x: 1.0}, statistics.mean, -1.0)
            rest = add(form, multiply(a, centered), -1.0)
            if atom in atoms(rest) or as_number(coefficient(algebra, rest, x, over)) is None:
                continue
            bias, rest = _bias(algebra, rest, statistics)
            return Split([Forward(statistics, scale, bias, *variance_and_epsilon)], [], rest)
    return None


def _bias(algebra: Algebra, rest: Polynomial, statistics: Statistics) -> tuple[Polynomial, Polynomial]:
    """The terms of a rest that are one number for each channel, and the others."""
    kept = algebra.varies(statistics.x) - statistics.over
    bias = {
        monomial: value
        for monomial, value in rest.items()
        if algebra.varies(monomial) <= kept and all(algebra.leaf_of(atom) is not None for atom, _ in monomial)
    }
    return bias, {monomial: value for monomial, value in rest.items() if monomial not in bias}


def _varying(algebra: Algebra, monomial: Monomial, over: Over) -> Monomial:
    """The factors of a monomial that vary along axes."""
    return part(monomial, lambda atom: bool(algebra.varies(((atom, 1),)) & over))[0]


def _data(algebra: Algebra, monomial: Monomial, kept: Over) -> Monomial:
    """The factors of a monomial that vary along other axes than the channels'."""
    return part(monomial, lambda atom: bool(algebra.varies(((atom, 1),)) - kept))[0]


def _marks(algebra: Algebra, forward: list[Forward], backward: list[Backward]) -> set[Atom]:
    """The atoms that must cancel."""
    marks = {_only_atom(algebra.sum_over({norm.statistics.x: 1.0}, norm.statistics.over)) for norm in forward}
    marks |= {norm.statistics.variance.atom for norm in forward if norm.statistics.variance is not None}
    for gradient in backward:
        x, over, _, _, variance = gradient.group.statistics
        marks.add(_only_atom(algebra.sum_over({times(gradient.group.dY, x): 1.0}, over)))
        marks.add(_only_atom(dbias_of(algebra, gradient.group)))
        marks |= {variance.atom} if variance is not None else set()
    return marks - {-1}


def _only_atom(form: Polynomial) -> Atom:
    """The only atom of a polynomial; -1 if it is not a single atom."""
    if len(form) == 1:
        ((monomial, _),) = form.items()
        if len(monomial) == 1:
            return monomial[0][0]
    return -1


def _divided(p: Polynomial, q: Polynomial) -> Polynomial | None:
    """P divided by a single term; None if it has several."""
    if len(q) != 1:
        return None
    ((monomial, value),) = q.items()
    return scaled(p, 1 / value, times(ONE, monomial, -1))
