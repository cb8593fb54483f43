"""The atoms of the normal form, and the sums and powers of polynomials.

An atom is a leaf (a value that the arithmetic does not explain), a sum over axes of a product of atoms, the size
of an axis, a variance plus epsilon, or another sum that was taken to a power. With S for sums over the reduced
axes, N elements each, and P = variance + epsilon of X, the sum of squares depends on P, and is always replaced::

    S(X * X) = N * (P - epsilon) + S(X)^2 / N

so that all formulas of the variance, and all of 1 / sqrt(P), have one polynomial.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from bngrad.passes.imports.decomposed.polynomial import (
    ONE,
    WHOLE,
    Polynomial,
    add,
    equal,
    multiply,
    part,
    power_of,
    scaled,
    substitute,
    times,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import onnx_ir as ir

    from bngrad.passes.imports.decomposed.axes import Axes
    from bngrad.passes.imports.decomposed.polynomial import Atom, Monomial

Over = frozenset[int]
"""The axes that a sum reduces, or a value varies along."""

_NOTHING: Over = frozenset()


class Variance(NamedTuple):
    """A variance plus epsilon, 1 / sqrt of which normalizes."""

    x: Monomial
    over: Over
    epsilon: float
    atom: Atom


class _Atom(NamedTuple):
    varies: Over
    positive: bool = False
    leaf: ir.Value | None = None
    summed: Monomial | None = None
    over: Over = _NOTHING


class Algebra:
    """The atoms of one graph.

    Args:
        axes: The axes of its values; they must not be equated any more.
    """

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        self.variances: dict[tuple[Monomial, Over], Variance] = {}
        self.variance_of: dict[Atom, Variance] = {}
        """The variance plus epsilon that an atom stands for."""
        self.variances_with: dict[Atom, list[Variance]] = {}
        """The variances of products that a leaf is a factor of."""
        self.node: ir.Node | None = None
        """The node that is visited."""
        self.maker: list[ir.Node | None] = []
        """The node that was visited when each atom was made."""
        self._atoms: list[_Atom] = []
        self._leaves: dict[ir.Value, Atom] = {}
        self._sums: dict[tuple[Monomial, Over], Atom] = {}
        self._sizes: dict[int | str, Atom] = {}
        self._size_atoms: set[Atom] = set()
        self._bases: dict[frozenset[Monomial], list[tuple[Polynomial, Atom]]] = {}
        self._rules: dict[Atom, Polynomial] = {}

    def leaf(self, value: ir.Value, varies: Over) -> Polynomial:
        """The polynomial of a value that arithmetic does not explain."""
        if value not in self._leaves:
            self._leaves[value] = self._new(_Atom(varies, leaf=value))
        return power_of(self._leaves[value])

    def leaf_of(self, atom: Atom) -> ir.Value | None:
        """The value of an atom; None if it is not a leaf."""
        return self._atoms[atom].leaf

    def sum_of(self, atom: Atom) -> tuple[Monomial, Over] | None:
        """The product that an atom is the sum of, and the reduced axes; None if it is not a sum."""
        info = self._atoms[atom]
        return None if info.summed is None else (info.summed, info.over)

    def sums_in(self, form: Iterable[Monomial]) -> Iterator[tuple[Monomial, Atom, Monomial, Over]]:
        """The sums that are factors of monomials: the monomial, the atom, the summed product, the reduced axes."""
        for monomial in form:
            for atom, exponent in monomial:
                info = self._atoms[atom]
                if info.summed is not None and exponent == WHOLE:
                    yield monomial, atom, info.summed, info.over

    def varies(self, monomial: Monomial) -> Over:
        """The axes that a monomial varies along."""
        return frozenset().union(*(self._atoms[atom].varies for atom, _ in monomial))

    def is_power_base(self, atom: Atom) -> bool:
        """Returns whether an atom is a sum that was taken to a power, such as a variance plus epsilon."""
        info = self._atoms[atom]
        return info.positive and atom not in self._size_atoms

    def base(self, atom: Atom) -> Polynomial | None:
        """The sum that was taken to a power, if an atom stands for one; None for variances of data."""
        return self._rules.get(atom) if self.is_power_base(atom) else None

    def bases(self) -> Iterator[tuple[Polynomial, Atom]]:
        """All sums that were taken to a power, except variances of data, and their atoms."""
        return (pair for pairs in self._bases.values() for pair in pairs)

    def extent(self, dimension: tuple[int, ...]) -> Polynomial:
        """The size of a dimension."""
        count, sizes = self.count(frozenset(dimension))
        return {sizes: count}

    def count(self, over: Over) -> tuple[float, Monomial]:
        """The number of elements along axes: a number, and the sizes that are symbols."""
        sizes = {axis: self.axes.size(axis) for axis in over}
        numbers = prod(size for size in sizes.values() if isinstance(size, int))
        symbolic: Monomial = ONE
        for axis in sorted(axis for axis, size in sizes.items() if not isinstance(size, int)):
            symbolic = times(symbolic, ((self._size(axis), WHOLE),))
        return float(numbers), symbolic

    def sum_over(self, p: Polynomial, over: Over) -> Polynomial:
        """The sum along axes; factors that do not vary along them are moved out of it."""
        result: Polynomial = {}
        for monomial, value in p.items():
            inner, outer = part(monomial, lambda atom: bool(self._atoms[atom].varies & over))
            along = self.varies(inner) & over
            count, sizes = self.count(over - along)
            term = {times(outer, sizes): value * count}
            result = add(result, multiply(term, self._sum(inner, along)) if inner else term)
        return self.normal(result)

    def mean(self, x: Monomial, over: Over) -> Polynomial:
        """S(x) / N."""
        count, sizes = self.count(over)
        return multiply(self.sum_over({x: 1.0}, over), {times(ONE, sizes, -1): 1 / count})

    def deviation(self, variance: Variance) -> Polynomial:
        """The variance without epsilon."""
        return add(power_of(variance.atom), {ONE: variance.epsilon}, -1.0)

    def normal(self, p: Polynomial) -> Polynomial:
        """A polynomial without the atoms that others express."""
        return substitute(p, self._rules) if self._rules else p

    def product(self, p: Polynomial, q: Polynomial) -> Polynomial:
        """P * q."""
        return self.normal(multiply(p, q))

    def power(self, p: Polynomial, halves: int) -> Polynomial | None:
        """P ** (halves / 2); None if that is not a polynomial."""
        p = self.normal(p)
        if len(p) == 1:
            ((monomial, value),) = p.items()
            return self._power_of_monomial(monomial, value, halves)
        if not p:
            return {} if halves > 0 else None
        if halves == WHOLE:
            return p
        whole = halves % WHOLE == 0
        for sign in (1.0, -1.0) if whole else (1.0,):
            match = self._find_variance(scaled(p, sign))
            if match is not None:
                variance, factor, by = match
                self._register(variance)
                return self._power_of_monomial(times(by, ((variance.atom, WHOLE),)), sign * factor, halves)
        if whole and halves > 0:
            result = p
            for _ in range(halves // WHOLE - 1):
                result = self.product(result, p)
            return result
        return self._power_of_sum(p, halves)

    def is_positive(self, p: Polynomial) -> bool:
        """Returns whether a polynomial adds positive products of sizes and of variances plus epsilon."""
        return all(value > 0 and all(self._atoms[atom].positive for atom, _ in m) for m, value in p.items())

    def is_variance(self, p: Polynomial) -> bool:
        """Returns whether a polynomial is a positive multiple of a variance, without epsilon."""
        p = self.normal(p)
        for monomial, factor in p.items():
            variance = self.variance_of.get(monomial[0][0]) if len(monomial) == 1 else None
            if variance is not None and factor > 0 and equal(p, scaled(self.deviation(variance), factor)):
                return True
        match = self._find_variance(p, create=False)
        return match is not None and match[0].epsilon == 0

    def _new(self, info: _Atom) -> Atom:
        self._atoms.append(info)
        self.maker.append(self.node)
        return len(self._atoms) - 1

    def _size(self, axis: int) -> Atom:
        """The atom for the size of an axis, one per symbol."""
        key = self.axes.size(axis) or axis
        if key not in self._sizes:
            self._sizes[key] = self._new(_Atom(_NOTHING, positive=True))
            self._size_atoms.add(self._sizes[key])
        return self._sizes[key]

    def _sum(self, inner: Monomial, over: Over) -> Polynomial:
        """The sum of a product whose factors all vary along the axes; a sum of a sum is one over all axes."""
        merged = True
        while merged:
            merged = False
            for power in inner:
                info, rest = self._atoms[power[0]], times(inner, (power,), -1)
                if info.summed is None or power[1] != WHOLE or self.varies(rest) & info.over:
                    continue
                inner, over, merged = times(rest, info.summed), over | info.over, True
                break
        key = inner, over
        if key not in self._sums:
            self._sums[key] = self._new(_Atom(self.varies(inner) - over, summed=inner, over=over))
        return power_of(self._sums[key])

    def _power_of_monomial(self, monomial: Monomial, value: float, halves: int) -> Polynomial | None:
        odd = halves % WHOLE != 0
        if value < 0 and odd:
            return None
        signed = [exponent for atom, exponent in monomial if not self._atoms[atom].positive]
        if odd and (len(signed) > 1 or any(exponent % (2 * WHOLE) != WHOLE for exponent in signed)):
            return None  # the root of x * x is |x|
        if any(exponent * halves % WHOLE for _, exponent in monomial):
            return None
        powers = tuple((atom, exponent * halves // WHOLE) for atom, exponent in monomial)
        return {tuple(sorted(powers)): abs(value) ** (halves / WHOLE) * (-1 if value < 0 and halves % 4 else 1)}

    def _power_of_sum(self, p: Polynomial, halves: int) -> Polynomial | None:
        lead = p[max(p)]
        if lead < 0 and halves % WHOLE:
            return None
        base = scaled(p, 1 / lead)
        candidates = self._bases.setdefault(frozenset(base), [])
        atom = next((atom for other, atom in candidates if equal(base, other)), None)
        if atom is None:
            atom = self._new(_Atom(frozenset().union(*map(self.varies, base)), positive=True))
            candidates.append((base, atom))
            self._rules[atom] = base
        sign = -1 if lead < 0 and halves % (2 * WHOLE) else 1
        return {((atom, halves),): sign * abs(lead) ** (halves / WHOLE)}

    def _find_variance(self, p: Polynomial, *, create: bool = True) -> tuple[Variance, float, Monomial] | None:
        """The variance plus epsilon, number and monomial whose product a polynomial is; None if there are none."""
        for monomial, value in p.items():
            for power in monomial:
                info = self._atoms[power[0]]
                if info.summed is None or power[1] != WHOLE or any(e % (2 * WHOLE) for _, e in info.summed):
                    continue
                x = tuple((atom, exponent // 2) for atom, exponent in info.summed)
                count, sizes = self.count(info.over)
                by, factor = times(times(monomial, (power,), -1), sizes), value * count
                if factor <= 0 or not all(self._atoms[atom].positive for atom, _ in by):
                    continue
                rest = add(p, scaled(self._variance(x, info.over, power[0]), factor, by), -1.0)
                epsilon = rest.get(by, 0.0) / factor
                if not rest.keys() <= {by} or epsilon < 0:
                    continue
                new = self._new(_Atom(self.varies(x) - info.over, positive=True)) if create else -1
                return Variance(x, info.over, epsilon, new), factor, by
        return None

    def _variance(self, x: Monomial, over: Over, squares: Atom) -> Polynomial:
        """S(x * x) / N - S(x)^2 / N^2."""
        count, sizes = self.count(over)
        mean = self.mean(x, over)
        mean_of_squares = {times(((squares, WHOLE),), sizes, -1): 1 / count}
        return add(mean_of_squares, multiply(mean, mean), -1.0)

    def _register(self, variance: Variance) -> None:
        """Expresses the sum of squares by the variance."""
        x, over, _, atom = variance
        self.variances[x, over] = variance
        self.variance_of[atom] = variance
        for base, _ in x:
            self.variances_with.setdefault(base, []).append(variance)
        count, sizes = self.count(over)
        squares = self._sums[tuple((base, 2 * exponent) for base, exponent in x), over]
        mean = self.mean(x, over)
        self._rules[squares] = scaled(add(self.deviation(variance), multiply(mean, mean)), count, sizes)
