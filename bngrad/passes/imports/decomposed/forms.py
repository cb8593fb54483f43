"""The normal form of every value of a graph: a polynomial of `algebra`'s atoms, or the value itself as a leaf."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.passes.imports.decomposed.constants import meant_number
from bngrad.passes.imports.decomposed.ops.record import FLOATS, op_of
from bngrad.passes.imports.decomposed.polynomial import WHOLE, atoms, equal, number
from bngrad.passes.imports.decomposed.sizes import Sizes

if TYPE_CHECKING:
    from collections.abc import Callable

    from bngrad.passes.imports.decomposed.algebra import Algebra, Over
    from bngrad.passes.imports.decomposed.layouts import Layouts
    from bngrad.passes.imports.decomposed.polynomial import Monomial, Polynomial

_MOST_TERMS = 96


class Forms:
    """The normal forms of the values of one graph.

    Args:
        layouts: The layouts of its values.
        algebra: The atoms of the forms.
        guards: Whether to decide comparisons whose result differs only for a variance of 0, or x - mean = 0. The
            gradient of the selected value may differ there, even if the value does not.
    """

    def __init__(self, layouts: Layouts, algebra: Algebra, *, guards: bool) -> None:
        self.layouts, self.algebra, self.guards = layouts, algebra, guards
        self.sizes = Sizes(layouts, algebra)
        self.by_value: dict[ir.Value, Polynomial] = {}
        self.plain_sums: dict[Monomial, Polynomial] = {}
        """The leaves that are sums of data, with the sums."""
        self.opened: set[ir.Value | None] = set()
        """The leaves that a match expands to their sums."""
        self.compares_with_zero = False
        """True if a comparison was decided that needs `guards`."""
        self._batch_axes = layouts.batch_axes()
        self._by_terms: dict[frozenset[Monomial], list[ir.Value]] = {}
        self.before_multiplying: Callable[[ir.Value, ir.Value], None] = lambda *_: None
        """Called for both factors of a product, each with the other, before the product is computed.

        It may make a factor a leaf.
        """

    def of(self, value: ir.Value) -> Polynomial:
        """The form of a value."""
        if value not in self.by_value:
            filled = self.layouts.filled(value)
            if filled is not None and value.dtype in (*FLOATS, ir.DataType.BOOL):
                self.by_value[value] = number(meant_number(filled, value.dtype))
            else:
                self.make_leaf(value)
        return self.algebra.normal(self.by_value[value])

    def of_input(self, node: ir.Node, index: int = 0) -> Polynomial | None:
        """The form of an input; None if the node does not have it."""
        value = node.inputs[index] if index < len(node.inputs) else None
        return None if value is None else self.of(value)

    def with_form(self, form: Polynomial) -> list[ir.Value]:
        """The values that have a form."""
        return [value for value in self._by_terms.get(frozenset(form), ()) if equal(self.of(value), form)]

    def multiples(self, monomial: Monomial, axes: Over) -> list[tuple[ir.Value, float]]:
        """The values along some axes that are a monomial times a number, with the number."""
        values = self._by_terms.get(frozenset((monomial,)), ())
        pairs = ((value, self.of(value)) for value in values if self.varies(value) == axes)
        return [(value, form[monomial]) for value, form in pairs if form.keys() == {monomial}]

    def is_leaf(self, value: ir.Value) -> bool:
        """Returns whether arithmetic does not explain a value."""
        return value not in self.by_value or self.by_value[value] == self._leaf(value)

    def make_leaf(self, value: ir.Value) -> None:
        """Makes a value an atom for all nodes that are visited from now on."""
        self._find(value, self._leaf(value))

    def visit(self, node: ir.Node) -> None:
        """Finds the forms of a node's outputs."""
        self.algebra.node = node
        self.sizes.visit(node)
        vector = self.sizes.of(node.outputs[0]) if node.outputs else None
        if vector is not None and node.outputs[0].dtype in FLOATS:
            if len(vector) == 1:
                self._find(node.outputs[0], vector[0])
            return
        rule = op_of(node).form if node in self.layouts.explained else None
        try:
            form = None if rule is None or self.layouts.of(node.outputs[0]) is None else rule(self, node)
        except ArithmeticError:  # a power of a constant overflows float64
            return
        if form is None or len(form) > _MOST_TERMS:
            return
        if self._is_plain_sum(form):
            (leaf,) = self._leaf(node.outputs[0])
            self.plain_sums[leaf] = form
            return
        if not all(isfinite(value) and value for value in form.values()):
            return
        self._find(node.outputs[0], form)

    def varies(self, value: ir.Value) -> Over:
        """The axes of a value."""
        layout = self.layouts.of(value)
        return frozenset() if layout is None else frozenset(axis for dimension in layout for axis in dimension)

    def _find(self, value: ir.Value, form: Polynomial) -> None:
        self.by_value[value] = form
        self._by_terms.setdefault(frozenset(form), []).append(value)

    def _leaf(self, value: ir.Value) -> Polynomial:
        return self.algebra.leaf(value, self.varies(value))

    def _is_plain_sum(self, form: Polynomial) -> bool:
        """Returns whether a form adds only data: branches of a network, a bias, or products as in dY - dY * y * y.

        Terms that share data, but for a factor that is one number a channel, may be x * dY - mean * dY.
        """
        if len(form) < 2 or any(self.algebra.leaf_of(atom) is None for atom in atoms(form)):
            return False
        varies = {atom: self.algebra.varies(((atom, 1),)) for atom in atoms(form)}
        whole = frozenset().union(*varies.values())
        if not whole:
            return False
        data = [term for monomial in form if (term := {atom for atom, _ in monomial if varies[atom] == whole})]
        if len(data) == 1 and self._adds_bias(form):
            return True
        only_data = bool(whole & self._batch_axes) and all(varies[atom] == whole for atom in atoms(form))
        return len(data) > 1 and (only_data or any(not left & right for left in data for right in data))

    def _adds_bias(self, form: Polynomial) -> bool:
        """Returns whether a form is data plus one number for each channel, whose gradient may be asked for."""
        linear = all(len(monomial) == 1 and monomial[0][1] == WHOLE for monomial in form)
        return linear and all(value == 1.0 and self.algebra.varies(term) for term, value in form.items())
