"""The normal form of every value of a graph: a polynomial of `algebra`'s atoms, or the value itself as a leaf."""

from __future__ import annotations

import operator
from math import isfinite
from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.passes.imports.decomposed.constants import meant_number
from bngrad.passes.imports.decomposed.layouts import equation_of, reduced_dimensions
from bngrad.passes.imports.decomposed.polynomial import WHOLE, add, as_number, atoms, equal, number, ratio
from bngrad.passes.imports.decomposed.sizes import Sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bngrad.passes.imports.decomposed.algebra import Algebra, Over
    from bngrad.passes.imports.decomposed.axes import Layout
    from bngrad.passes.imports.decomposed.layouts import Layouts
    from bngrad.passes.imports.decomposed.polynomial import Monomial, Polynomial

_MOST_TERMS = 96
_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)

MOVES = frozenset(("Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Tile", "Transpose", "Unsqueeze"))
"""Ops whose output has the elements of input 0 in another shape."""

_CHOICES = frozenset(("Abs", "Clip", "Max", "Relu", "Where"))
"""Ops that arithmetic explains only where they keep a variance from being negative."""


class Forms:
    """The normal forms of the values of one graph.

    Args:
        layouts: The layouts of its values.
        algebra: Where atoms are made.
        guards: Whether to decide comparisons that only a variance of 0, or x - mean = 0, decides otherwise. The
            gradient of what they choose may differ there, even if what they choose does not.
    """

    def __init__(self, layouts: Layouts, algebra: Algebra, *, guards: bool) -> None:
        self.layouts, self.algebra, self.guards = layouts, algebra, guards
        self.sizes = Sizes(layouts, algebra)
        self.found: dict[ir.Value, Polynomial] = {}
        self.plain_sums: dict[Monomial, Polynomial] = {}
        """The leaves that are sums of data, and those."""
        self.opened: set[ir.Value | None] = set()
        """The leaves that a match takes as the sums that they are."""
        self.compares_with_zero = False
        """Whether one of these comparisons was decided."""
        self._batch_axes = layouts.batch_axes()
        self._by_terms: dict[frozenset[Monomial], list[ir.Value]] = {}
        self.before_multiplying: Callable[[ir.Value, ir.Value], None] = lambda *_: None
        """Called for both factors of a product, each with the other, before it is made.

        It may make a leaf of one.
        """

    def of(self, value: ir.Value) -> Polynomial:
        """The form of a value."""
        if value not in self.found:
            filled = self.layouts.filled(value)
            if filled is not None and value.dtype in (*_FLOATS, ir.DataType.BOOL):
                self.found[value] = number(meant_number(filled, value.dtype))
            else:
                self.make_leaf(value)
        return self.algebra.normal(self.found[value])

    def with_form(self, form: Polynomial) -> list[ir.Value]:
        """The values that have a form."""
        return [value for value in self._by_terms.get(frozenset(form), ()) if equal(self.of(value), form)]

    def multiples(self, monomial: Monomial, axes: Over) -> list[tuple[ir.Value, float]]:
        """The values of some axes that are a monomial times a number, and the number."""
        values = self._by_terms.get(frozenset((monomial,)), ())
        found = ((value, self.of(value)) for value in values if self.varies(value) == axes)
        return [(value, form[monomial]) for value, form in found if form.keys() == {monomial}]

    def is_leaf(self, value: ir.Value) -> bool:
        """Whether a value is not explained by others."""
        return value not in self.found or self.found[value] == self._leaf(value)

    def make_leaf(self, value: ir.Value) -> None:
        """Makes a value an atom for all nodes that are visited from now on."""
        self._find(value, self._leaf(value))

    def visit(self, node: ir.Node) -> None:
        """Finds the forms of a node's outputs."""
        self.algebra.node = node
        self.sizes.visit(node)
        vector = self.sizes.of(node.outputs[0]) if node.outputs else None
        if vector is not None and node.outputs[0].dtype in _FLOATS:
            if len(vector) == 1:
                self._find(node.outputs[0], vector[0])
            return
        rule = _RULES.get(node.op_type) if node in self.layouts.explained else None
        try:
            form = None if rule is None or self.layouts.of(node.outputs[0]) is None else rule(self, node)
        except ArithmeticError:  # a power of a constant is no float64
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
        self.found[value] = form
        self._by_terms.setdefault(frozenset(form), []).append(value)

    def _leaf(self, value: ir.Value) -> Polynomial:
        return self.algebra.leaf(value, self.varies(value))

    def _is_plain_sum(self, form: Polynomial) -> bool:
        """Whether a form adds data alone: branches of a network, a bias, or products such as dY - dY * y * y.

        Terms that share data, but for a factor that is one number a channel, may be x * dY - mean * dY.
        """
        if len(form) < 2 or any(self.algebra.leaf_of(one) is None for one in atoms(form)):
            return False
        varies = {one: self.algebra.varies(((one, 1),)) for one in atoms(form)}
        whole = frozenset().union(*varies.values())
        if not whole:
            return False
        data = [each for monomial in form if (each := {one for one, _ in monomial if varies[one] == whole})]
        if len(data) == 1 and self._adds_bias(form):
            return True
        alone = bool(whole & self._batch_axes) and all(varies[one] == whole for one in atoms(form))
        return len(data) > 1 and (alone or any(not one & other for one in data for other in data))

    def _adds_bias(self, form: Polynomial) -> bool:
        """Whether a form is data plus one number for each channel, whose gradient may be asked for."""
        alone = all(len(monomial) == 1 and monomial[0][1] == WHOLE for monomial in form)
        return alone and all(value == 1.0 and self.algebra.varies(term) for term, value in form.items())


def _input(known: Forms, node: ir.Node, index: int = 0) -> Polynomial | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if value is None else known.of(value)


def _same(known: Forms, node: ir.Node) -> Polynomial | None:
    return _input(known, node)


def _cast(known: Forms, node: ir.Node) -> Polynomial | None:
    x, to = node.inputs[0], node.outputs[0].dtype
    if x is None or to not in _FLOATS:
        return None
    vector = known.sizes.of(x)
    if vector is not None:
        return vector[0] if len(vector) == 1 else None
    if x.dtype == ir.DataType.BOOL:
        flag = as_number(known.of(x))
        return None if flag is None else number(flag)
    return known.of(x) if x.dtype in _FLOATS else None


def _add(known: Forms, node: ir.Node) -> Polynomial | None:
    if node.outputs[0].dtype not in _FLOATS:
        return None
    total: Polynomial = {}
    for index in range(len(node.inputs)):
        term = _input(known, node, index)
        if term is None:
            return None
        total = add(total, term, -1.0 if node.op_type == "Sub" and index else 1.0)
    return total


def _neg(known: Forms, node: ir.Node) -> Polynomial | None:
    x = _input(known, node)
    return None if x is None else add({}, x, -1.0)


def _mul(known: Forms, node: ir.Node) -> Polynomial | None:
    a, b = node.inputs
    if a is None or b is None or node.outputs[0].dtype not in _FLOATS:
        return None
    if a is not b:
        known.before_multiplying(a, b)
        known.before_multiplying(b, a)
    return known.algebra.product(known.of(a), known.of(b))


def _div(known: Forms, node: ir.Node) -> Polynomial | None:
    a, b = _input(known, node, 0), _input(known, node, 1)
    if a is None or b is None or node.outputs[0].dtype not in _FLOATS:
        return None
    inverse = known.algebra.power(b, -2)
    return None if inverse is None else known.algebra.product(a, inverse)


def _pow(known: Forms, node: ir.Node) -> Polynomial | None:
    base, exponent = _input(known, node, 0), node.inputs[1]
    sizes = known.sizes.of(exponent)
    power = as_number(sizes[0]) if sizes else None if exponent is None else as_number(known.of(exponent))
    if base is None or power is None or not 0 < abs(power) <= 4 or power * 2 != int(power * 2):
        return None
    return known.algebra.power(base, int(power * 2))


def _root(known: Forms, node: ir.Node) -> Polynomial | None:
    x = _input(known, node)
    return None if x is None else known.algebra.power(x, 1)


def _reciprocal(known: Forms, node: ir.Node) -> Polynomial | None:
    x = _input(known, node)
    return None if x is None else known.algebra.power(x, -2)


def _reduce(known: Forms, node: ir.Node) -> Polynomial | None:
    x = node.inputs[0]
    layout = None if x is None else known.layouts.at(x)
    if x is None or layout is None or node.outputs[0].dtype not in _FLOATS:
        return None
    dimensions = reduced_dimensions(node, len(layout))
    if dimensions is None:
        return None
    return _reduced(known, known.of(x), [layout[one] for one in dimensions], node.op_type)


def _pool(known: Forms, node: ir.Node) -> Polynomial | None:
    x = node.inputs[0]
    layout = None if x is None else known.layouts.of(x)
    return None if x is None or layout is None else _reduced(known, known.of(x), layout[2:], "ReduceMean")


def _reduced(
    known: Forms, form: Polynomial, dimensions: Iterable[tuple[int, ...]], op_type: str
) -> Polynomial | None:
    over = frozenset(axis for dimension in dimensions for axis in dimension)
    if op_type == "ReduceSumSquare":
        form = known.algebra.product(form, form)
    total = known.algebra.sum_over(form, over)
    if op_type != "ReduceMean":
        return total
    share = known.algebra.power(known.algebra.extent(tuple(over)), -2)
    return None if share is None else known.algebra.product(total, share)


def _matmul(known: Forms, node: ir.Node) -> Polynomial | None:
    a, b = node.inputs
    layouts = [None if value is None else known.layouts.of(value) for value in (a, b)]
    if a is None or b is None:
        return None
    place, data = (-2, b) if known.layouts.filled(a) is not None else (-1, a)
    layout = layouts[1] if data is b else layouts[0]
    if layout is None or not layout:
        return None
    product = known.algebra.product(known.of(a), known.of(b))
    return known.algebra.sum_over(product, frozenset(layout[place if len(layout) > 1 else -1]))


def _einsum(known: Forms, node: ir.Node) -> Polynomial | None:
    parsed = equation_of(node)
    if parsed is None:
        return None
    terms, output = parsed
    over: set[int] = set()
    product = number(1.0)
    seen: set[str] = set()
    data_first = sorted(range(len(terms)), key=lambda index: known.layouts.filled(node.inputs[index]) is not None)
    for index in data_first:
        value = node.inputs[index]
        layout: Layout | None = None if value is None else known.layouts.at(value)
        if value is None or layout is None:
            return None
        product = known.algebra.product(product, known.of(value))
        for letter, dimension in zip(terms[index], layout, strict=True):
            if letter not in output and letter not in seen:
                over |= set(dimension)
            seen.add(letter)
    return known.algebra.sum_over(product, frozenset(over))


def _constant_of_shape(known: Forms, node: ir.Node) -> Polynomial | None:  # noqa: ARG001
    value = node.attributes.get("value")
    if node.outputs[0].dtype not in _FLOATS or (value is not None and value.is_ref()):
        return None
    return number(0.0 if value is None else float(value.as_tensor().numpy().item()))


def _variance_kept(known: Forms, node: ir.Node) -> Polynomial | None:
    """A variance that is kept from being negative is the variance."""
    forms = [known.of(value) for value in node.inputs if value is not None]
    if node.op_type == "Clip" and len(node.inputs) > 2 and node.inputs[2] is not None:
        return None
    moving = [form for form in forms if form]
    if node.op_type in ("Clip", "Max") and (len(forms) != 2 or len(moving) != 1):
        return None
    return moving[0] if len(moving) == 1 and known.algebra.is_variance(moving[0]) else None


def _where(known: Forms, node: ir.Node) -> Polynomial | None:
    condition = node.inputs[0]
    flag = None if condition is None else as_number(known.of(condition))
    if flag is not None:
        return _input(known, node, 1 if flag else 2)
    return _guarded(known, node)


def _guarded(known: Forms, node: ir.Node) -> Polynomial | None:
    """A product that is 0 where one factor is 0, even if the other is infinite: `graph.guards`."""
    test = None if node.inputs[0] is None else node.inputs[0].producer()
    if (
        not known.guards
        or test is None
        or (test.domain, test.op_type) != ("", "Equal")
        or _input(known, node, 1) != {}
    ):
        return None
    factor, zero, product = _input(known, test, 0), _input(known, test, 1), _input(known, node, 2)
    if not factor or zero != {} or product is None:
        return None
    known.compares_with_zero = True
    if len(factor) == 1:
        (monomial,) = factor
        signed = [(one, exponent) for one, exponent in monomial if not known.algebra.is_power_base(one)]
        multiple = all(dict(term).get(one, 0) >= exponent > 0 for term in product for one, exponent in signed)
        return product if multiple else None
    return product if ratio(product, factor) is not None else None


def _compare(known: Forms, node: ir.Node) -> Polynomial | None:
    """A comparison of constants, of sizes with 0, or that only a variance of 0 decides.

    The last is taken for positive: x - mean, which all that depends on it is multiplied with, is 0 there.
    """
    a, b = _input(known, node, 0), _input(known, node, 1)
    if a is None or b is None or node.inputs[0] is None or node.inputs[0].dtype not in _FLOATS:
        return None
    difference = add(a, b, -1.0)
    sign = as_number(difference)
    if sign is None and (not a or not b):
        varies = known.guards and known.algebra.is_variance(a or b)
        known.compares_with_zero |= varies
        sign = (1.0 if a else -1.0) if varies or known.algebra.is_positive(a or b) else None
    if sign is None or (not difference and as_number(a) is None and not known.algebra.is_variance(a)):
        return None
    return number(float(_COMPARISONS[node.op_type](sign, 0.0)))


def _logic(known: Forms, node: ir.Node) -> Polynomial | None:
    flags = [as_number(known.of(value)) for value in node.inputs if value is not None]
    if not flags or None in flags:
        return None
    if node.op_type == "Not":
        return number(float(not flags[0]))
    return number(float((all if node.op_type == "And" else any)(flags)))


_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "Equal": operator.eq,
    "Greater": operator.gt,
    "GreaterOrEqual": operator.ge,
    "Less": operator.lt,
    "LessOrEqual": operator.le,
}

_RULES: dict[str, Callable[[Forms, ir.Node], Polynomial | None]] = {
    **dict.fromkeys(MOVES, _same),
    **dict.fromkeys(("Cast", "CastLike"), _cast),
    **dict.fromkeys(("Add", "Sub", "Sum"), _add),
    "Neg": _neg,
    "Mul": _mul,
    "Div": _div,
    "Pow": _pow,
    "Sqrt": _root,
    "Reciprocal": _reciprocal,
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceSumSquare"), _reduce),
    "GlobalAveragePool": _pool,
    "MatMul": _matmul,
    "Einsum": _einsum,
    "ConstantOfShape": _constant_of_shape,
    **dict.fromkeys(("Abs", "Clip", "Max", "Relu"), _variance_kept),
    "Where": _where,
    **dict.fromkeys(_COMPARISONS, _compare),
    **dict.fromkeys(("And", "Not", "Or"), _logic),
}


def is_choice(node: ir.Node) -> bool:
    """Whether a node reads its inputs for more than their arithmetic."""
    return node.op_type in _CHOICES or node.op_type not in _RULES or node.op_type in _COMPARISONS
