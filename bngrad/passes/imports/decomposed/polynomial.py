"""Laurent polynomials: sums of numbers times powers of atoms. Equal ones have the same form.

Exponents are counted in halves, so that square roots are powers: the exponent of x is 2, of 1 / sqrt(x) -1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Atom = int
Monomial = tuple[tuple[Atom, int], ...]
"""Atoms with their exponents in halves, in the order of the atoms."""

Polynomial = dict[Monomial, float]
"""A nonzero number for each monomial."""

Vector = list[Polynomial]
"""Integers that are computed from sizes of axes."""

ONE: Monomial = ()
WHOLE = 2
"""The exponent of an atom that is multiplied once."""

ROUNDING = 1e-6
"""The relative error that rounded float32 constants may cause in a number that is exact otherwise."""


def number(value: float) -> Polynomial:
    """A constant."""
    return {ONE: value} if value else {}


def power_of(atom: Atom, exponent: int = WHOLE) -> Polynomial:
    """A power of an atom."""
    return {((atom, exponent),): 1.0}


def as_number(p: Polynomial) -> float | None:
    """The value of a constant; None for others."""
    if not p:
        return 0.0
    return p[ONE] if len(p) == 1 and ONE in p else None


def add(p: Polynomial, q: Polynomial, factor: float = 1.0) -> Polynomial:
    """P + factor * q."""
    result = dict(p)
    for monomial, value in q.items():
        old, new = result.get(monomial, 0.0), factor * value
        total = old + new
        if abs(total) <= ROUNDING * max(abs(old), abs(new)):
            result.pop(monomial, None)
        else:
            result[monomial] = total
    return result


def multiply(p: Polynomial, q: Polynomial) -> Polynomial:
    """P * q."""
    result: Polynomial = {}
    for monomial, value in p.items():
        result = add(result, {times(monomial, other): value * factor for other, factor in q.items()})
    return result


def scaled(p: Polynomial, factor: float, by: Monomial = ONE) -> Polynomial:
    """P * factor * a monomial."""
    return {times(monomial, by): value * factor for monomial, value in p.items()} if factor else {}


def times(left: Monomial, right: Monomial, exponent: int = 1) -> Monomial:
    """Left * right ** exponent."""
    if not right:
        return left
    powers = dict(left)
    for base, power in right:
        total = powers.get(base, 0) + power * exponent
        if total:
            powers[base] = total
        else:
            powers.pop(base, None)
    return tuple(sorted(powers.items()))


def equal(p: Polynomial, q: Polynomial) -> bool:
    """Returns whether two polynomials have the same monomials, and numbers that differ by rounding at most."""
    return p.keys() == q.keys() and all(
        abs(value - q[monomial]) <= ROUNDING * max(abs(value), abs(q[monomial])) for monomial, value in p.items()
    )


def atoms(p: Polynomial | Iterable[Monomial]) -> set[Atom]:
    """All atoms."""
    return {atom for monomial in p for atom, _ in monomial}


def part(monomial: Monomial, predicate: Callable[[Atom], bool]) -> tuple[Monomial, Monomial]:
    """A monomial as a product: of the atoms that satisfy a predicate, and of the others."""
    inside = tuple(power for power in monomial if predicate(power[0]))
    return inside, tuple(power for power in monomial if not predicate(power[0]))


def ratio(p: Polynomial, q: Polynomial) -> tuple[Monomial, float] | None:
    """The monomial and number whose product with q is p; None if there is none."""
    if len(p) != len(q) or not p:
        return None
    first = min(p)
    for other in q:
        by, factor = times(first, other, -1), p[first] / q[other]
        if equal(p, scaled(q, factor, by)):
            return by, factor
    return None


def substitute(p: Polynomial, values: Mapping[Atom, Polynomial]) -> Polynomial:
    """Replaces atoms, in monomials that have them with a positive whole exponent, by polynomials."""
    if not any(atom in values for atom in atoms(p)):
        return p
    result: Polynomial = {}
    for monomial, value in p.items():
        inside, rest = part(monomial, lambda atom: atom in values)
        term: Polynomial = {rest: value}
        for atom, exponent in inside:
            if exponent < 0 or exponent % WHOLE:
                term = multiply(term, power_of(atom, exponent))
                continue
            for _ in range(exponent // WHOLE):
                term = multiply(term, values[atom])
        result = add(result, term)
    return result
