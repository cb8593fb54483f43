"""The outputs of batch-norm ops with one number for each channel: statistics, dscale and dbias.

A value equal to one of them is replaced. A value that other ops read and that is a scaled sum of them, such as a
dscale plus weight decay, is computed from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bngrad.passes.imports.decomposed.batch_norm import (
    Group,
    Statistics,
    batch_statistics,
    dbias_of,
    divides,
    dscale_of,
    given_variance,
    is_given,
)
from bngrad.passes.imports.decomposed.polynomial import (
    ONE,
    WHOLE,
    Monomial,
    Polynomial,
    add,
    atoms,
    part,
    power_of,
    ratio,
    scaled,
    times,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bngrad.passes.imports.decomposed.algebra import Over
    from bngrad.passes.imports.decomposed.analysis import Analysis


class Gradients(NamedTuple):
    """A value as factor * dscale + shift * dbias + rest."""

    factor: Polynomial
    shift: Polynomial
    rest: Polynomial


def gradient_groups(analysis: Analysis) -> list[Group]:
    """The gradients of a graph: those with a dX, and those of which only dscale is read."""
    groups = analysis.groups
    data_with = _sums_in_data(analysis)
    for value in list(analysis.forms.by_value):
        form = analysis.forms.of(value)
        if len(form) < 2 or not _has_sum(analysis, form) or not analysis.is_read_elsewhere(value):
            continue
        for group in _groups_of(analysis, form):
            if data_with & _sums_of(analysis, group):
                continue
            gradients = as_gradients(analysis, form, group)
            if gradients is not None and gradients.factor:
                groups.setdefault(group.key, group)
    return list(groups.values())


def _sums_in_data(analysis: Analysis) -> set[int]:
    """The sums that data other than results is computed from: such data looks like a dX, but is not one."""
    sums = set()
    for value in list(analysis.forms.by_value):
        form = analysis.forms.of(value)
        if value not in analysis.results and analysis.is_read_elsewhere(value):
            for _, atom, _, over in analysis.algebra.sums_in(form):
                if any(analysis.algebra.varies(m) & over for m in form):
                    sums.add(atom)
    return sums


def marks_of(analysis: Analysis, group: Group) -> set[int]:
    """The atoms one of which occurs in every form that has an output of a gradient."""
    sums = _sums_of(analysis, group)
    return sums if group.statistics.variance is not None else sums | atoms(group.statistics.inv_std)


def _sums_of(analysis: Analysis, group: Group) -> set[int]:
    """S(dY * x) and S(dY)."""
    x, over, _, _, _ = group.statistics
    return {_sum_atom(analysis, times(group.dY, x), over), *atoms(dbias_of(analysis.algebra, group))}


def as_gradients(analysis: Analysis, form: Polynomial, group: Group) -> Gradients | None:
    """A form by dscale and dbias; None if it has neither, or other terms of the gradient."""
    algebra = analysis.algebra
    product = _sum_atom(analysis, times(group.dY, group.statistics.x), group.statistics.over)
    by_product = _coefficient(form, product)
    inverse = group.statistics.inv_std
    ((monomial, number),) = inverse.items()
    factor = scaled(by_product, 1 / number, times(ONE, monomial, -1))
    rest = add(form, algebra.product(factor, dscale_of(algebra, group)), -1.0)
    ((total, repeats),) = dbias_of(algebra, group).items()
    shift = {times(m, total, -1): value / repeats for m, value in rest.items() if set(total) <= set(m)}
    rest = add(rest, algebra.product(shift, dbias_of(algebra, group)), -1.0)
    if not factor and not shift:
        return None
    leaves = (atom for polynomial in (factor, shift, rest) for atom in atoms(polynomial))
    return Gradients(factor, shift, rest) if all(algebra.leaf_of(atom) is not None for atom in leaves) else None


def frozen_scale(analysis: Analysis, form: Polynomial, group: Group) -> tuple[Polynomial, Polynomial] | None:
    """The scale of scale * inv_std * dY in a form, and the other terms; None if it has no such term."""
    roots = atoms(group.statistics.inv_std)
    terms = {
        monomial: value
        for monomial, value in form.items()
        if roots <= atoms((monomial,))
        and part(monomial, lambda atom: bool(analysis.algebra.varies(((atom, 1),)) & group.statistics.over))[0]
        == group.dY
    }
    if not terms:
        return None
    ((inverse, number),) = group.statistics.inv_std.items()
    scale = {times(times(m, group.dY, -1), inverse, -1): value / number for m, value in terms.items()}
    if any(analysis.algebra.leaf_of(atom) is None for atom in atoms(scale)):
        return None
    return scale, {monomial: value for monomial, value in form.items() if monomial not in terms}


def _groups_of(analysis: Analysis, form: Polynomial) -> Iterator[Group]:
    """The gradients whose dscale a form may have: S(dY * x) * inv_std, minus a mean."""
    algebra = analysis.algebra
    for _, atom, inner, over in algebra.sums_in(form):
        for x in _candidates(analysis, inner, over):
            dY = times(inner, x, -1)
            if not dY or dY == x:
                continue
            if not analysis.reduces_batch(x, over):
                continue
            variance = algebra.variances.get((x, over))
            if variance is not None:
                yield Group(batch_statistics(algebra, variance), dY)
                continue
            frozen = _frozen_statistics(analysis, form, atom, (x, over, dY))
            if frozen is not None:
                yield Group(frozen, dY)


def _candidates(analysis: Analysis, inner: Monomial, over: Over) -> list[Monomial]:
    """The parts of a product that may be x: those with a variance, else each factor that is data."""
    with_variance = [variance for base, _ in inner for variance in analysis.algebra.variances_with.get(base, ())]
    normalized = [variance.x for variance in with_variance if variance.over == over and divides(variance.x, inner)]
    return list(dict.fromkeys(normalized)) or [((atom, WHOLE),) for atom, exponent in inner if exponent >= WHOLE]


def _frozen_statistics(
    analysis: Analysis, form: Polynomial, product: int, term: tuple[Monomial, Over, Monomial]
) -> Statistics | None:
    """The given mean and inv_std of inv_std * (S(dY * x) - mean * S(dY)); there has to be a mean."""
    x, over, dY = term
    by_product = _coefficient(form, product)
    ((total, repeats),) = analysis.algebra.sum_over({dY: 1.0}, over).items()
    by_total = {times(m, total, -1): value / repeats for m, value in form.items() if set(total) <= set(m)}
    mean = ratio(by_total, by_product) if by_total and by_product else None
    if mean is None or mean[1] >= 0 or len(by_product) != 1:
        return None
    if not mean[0] or not all(is_given(analysis.algebra, atom) for atom in atoms((mean[0],))):
        return None
    (monomial,) = by_product
    roots = [atom for atom, _ in monomial if given_variance(analysis.algebra, atom) is not None]
    leaves = [atom for atom, exponent in monomial if is_given(analysis.algebra, atom) and exponent > 0]
    if len(roots) == 1 and (roots[0], -1) in monomial:
        inv_std = power_of(roots[0], -1)
    elif not roots and len(leaves) == len(monomial) == 1:
        inv_std = power_of(leaves[0])
    else:
        return None
    return Statistics(x, over, {mean[0]: -mean[1]}, inv_std, None)


def _has_sum(analysis: Analysis, form: Polynomial) -> bool:
    return any(analysis.algebra.sum_of(atom) is not None for atom in atoms(form))


def _sum_atom(analysis: Analysis, of: Monomial, over: Over) -> int:
    form = analysis.algebra.sum_over({of: 1.0}, over)
    return next((atom for monomial in form for atom, _ in monomial), -1) if len(form) == 1 else -1


def _coefficient(form: Polynomial, atom: int) -> Polynomial:
    """The coefficient of an atom."""
    power = ((atom, WHOLE),)
    return {times(monomial, power, -1): value for monomial, value in form.items() if power[0] in monomial}
