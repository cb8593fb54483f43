"""The normal forms of arithmetic: of each op that a batch norm is spelled with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import onnx_ir as ir

from bngrad.passes.imports.decomposed.layouts import equation_of, reduced_dimensions
from bngrad.passes.imports.decomposed.polynomial import WHOLE, add, as_number, number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bngrad.passes.imports.decomposed.algebra import Algebra
    from bngrad.passes.imports.decomposed.axes import Layout
    from bngrad.passes.imports.decomposed.layouts import Layouts
    from bngrad.passes.imports.decomposed.polynomial import Polynomial
    from bngrad.passes.imports.decomposed.sizes import Sizes

FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)

MOVES = frozenset(("Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Tile", "Transpose", "Unsqueeze"))
"""Ops whose output has the elements of input 0 in another shape."""


class KnownForms(Protocol):
    """What the rules read: see `forms.Forms`."""

    layouts: Layouts
    algebra: Algebra
    sizes: Sizes
    guards: bool
    compares_with_zero: bool
    before_multiplying: Callable[[ir.Value, ir.Value], None]

    def of(self, value: ir.Value) -> Polynomial:
        """The form of a value."""


def form_of_input(known: KnownForms, node: ir.Node, index: int = 0) -> Polynomial | None:
    """The form of an input; None if the node does not have it."""
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if value is None else known.of(value)


def _same(known: KnownForms, node: ir.Node) -> Polynomial | None:
    return form_of_input(known, node)


def _cast(known: KnownForms, node: ir.Node) -> Polynomial | None:
    x, to = node.inputs[0], node.outputs[0].dtype
    if x is None or to not in FLOATS:
        return None
    vector = known.sizes.of(x)
    if vector is not None:
        return vector[0] if len(vector) == 1 else None
    if x.dtype == ir.DataType.BOOL:
        flag = as_number(known.of(x))
        return None if flag is None else number(flag)
    return known.of(x) if x.dtype in FLOATS else None


def _add(known: KnownForms, node: ir.Node) -> Polynomial | None:
    if node.outputs[0].dtype not in FLOATS:
        return None
    total: Polynomial = {}
    for index in range(len(node.inputs)):
        term = form_of_input(known, node, index)
        if term is None:
            return None
        total = add(total, term, -1.0 if node.op_type == "Sub" and index else 1.0)
    return total


def _neg(known: KnownForms, node: ir.Node) -> Polynomial | None:
    x = form_of_input(known, node)
    return None if x is None else add({}, x, -1.0)


def _mul(known: KnownForms, node: ir.Node) -> Polynomial | None:
    a, b = node.inputs
    if a is None or b is None or node.outputs[0].dtype not in FLOATS:
        return None
    if a is b:
        return known.algebra.power(known.of(a), 2 * WHOLE)
    known.before_multiplying(a, b)
    known.before_multiplying(b, a)
    return known.algebra.product(known.of(a), known.of(b))


def _div(known: KnownForms, node: ir.Node) -> Polynomial | None:
    a, b = form_of_input(known, node, 0), form_of_input(known, node, 1)
    if a is None or b is None or node.outputs[0].dtype not in FLOATS:
        return None
    inverse = known.algebra.power(b, -2)
    return None if inverse is None else known.algebra.product(a, inverse)


def _pow(known: KnownForms, node: ir.Node) -> Polynomial | None:
    base, exponent = form_of_input(known, node, 0), node.inputs[1]
    sizes = known.sizes.of(exponent)
    power = as_number(sizes[0]) if sizes else None if exponent is None else as_number(known.of(exponent))
    if base is None or power is None or not 0 < abs(power) <= 4 or power * 2 != int(power * 2):
        return None
    return known.algebra.power(base, int(power * 2))


def _root(known: KnownForms, node: ir.Node) -> Polynomial | None:
    x = form_of_input(known, node)
    return None if x is None else known.algebra.power(x, 1)


def _reciprocal(known: KnownForms, node: ir.Node) -> Polynomial | None:
    x = form_of_input(known, node)
    return None if x is None else known.algebra.power(x, -2)


def _reduce(known: KnownForms, node: ir.Node) -> Polynomial | None:
    x = node.inputs[0]
    layout = None if x is None else known.layouts.at(x)
    if x is None or layout is None or node.outputs[0].dtype not in FLOATS:
        return None
    dimensions = reduced_dimensions(node, len(layout))
    if dimensions is None:
        return None
    return _reduced(known, known.of(x), [layout[one] for one in dimensions], node.op_type)


def _pool(known: KnownForms, node: ir.Node) -> Polynomial | None:
    x = node.inputs[0]
    layout = None if x is None else known.layouts.of(x)
    return None if x is None or layout is None else _reduced(known, known.of(x), layout[2:], "ReduceMean")


def _reduced(
    known: KnownForms, form: Polynomial, dimensions: Iterable[tuple[int, ...]], op_type: str
) -> Polynomial | None:
    over = frozenset(axis for dimension in dimensions for axis in dimension)
    if op_type == "ReduceSumSquare":
        form = known.algebra.product(form, form)
    total = known.algebra.sum_over(form, over)
    if op_type != "ReduceMean":
        return total
    share = known.algebra.power(known.algebra.extent(tuple(over)), -2)
    return None if share is None else known.algebra.product(total, share)


def _matmul(known: KnownForms, node: ir.Node) -> Polynomial | None:
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


def _einsum(known: KnownForms, node: ir.Node) -> Polynomial | None:
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


def _constant_of_shape(known: KnownForms, node: ir.Node) -> Polynomial | None:  # noqa: ARG001
    value = node.attributes.get("value")
    if node.outputs[0].dtype not in FLOATS or (value is not None and value.is_ref()):
        return None
    return number(0.0 if value is None else float(value.as_tensor().numpy().item()))


FORM_RULES: dict[str, Callable[[KnownForms, ir.Node], Polynomial | None]] = {
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
}
