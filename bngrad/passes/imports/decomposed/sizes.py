"""Integers that a graph computes from shapes: the elements of small vectors, as polynomials of sizes of axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.errors import UnsupportedNodeError
from bngrad.graph.node_reader import constant_of, known_integers, read_attribute
from bngrad.passes.imports.decomposed.polynomial import Polynomial, as_number, multiply, number

if TYPE_CHECKING:
    from collections.abc import Callable

    from bngrad.passes.imports.decomposed.algebra import Algebra
    from bngrad.passes.imports.decomposed.layouts import Layouts

Vector = list[Polynomial]

_INTEGERS = (ir.DataType.INT64, ir.DataType.INT32)
_LONGEST = 16
_OF_FLOATS = ("Cast", "Gather", "Identity", "ReduceProd", "Reshape", "Slice", "Squeeze", "Unsqueeze")
"""Ops that also give sizes as floats."""


class Sizes:
    """The known integers of one graph, whose nodes are visited in order."""

    def __init__(self, layouts: Layouts, algebra: Algebra) -> None:
        self.layouts, self.algebra = layouts, algebra
        self._found: dict[ir.Value, Vector] = {}

    def of(self, value: ir.Value | None) -> Vector | None:
        """The elements of a vector or scalar; None if they are unknown."""
        if value is None or value in self._found:
            return None if value is None else self._found[value]
        if value.dtype not in _INTEGERS:
            return None
        array = constant_of(value)
        if array is None or array.ndim > 1 or array.size > _LONGEST:
            return None
        return [number(float(one)) for one in array.ravel()]

    def knows(self, node: ir.Node) -> bool:
        """Whether a node reads sizes that a node before it gave."""
        return bool(node.inputs) and node.inputs[0] in self._found

    def visit(self, node: ir.Node) -> None:
        """Finds the output of a node."""
        rule = _RULES.get(node.op_type) if node.domain == "" else None
        if rule is None or not node.outputs:
            return
        if node.outputs[0].dtype not in _INTEGERS and (node.op_type not in _OF_FLOATS or not self.knows(node)):
            return
        try:
            found = rule(self, node)
        except (UnsupportedNodeError, IndexError):  # it is malformed, or its attributes are those of a function
            return
        if found is not None and len(found) <= _LONGEST:
            self._found[node.outputs[0]] = found


def _shape(known: Sizes, node: ir.Node) -> Vector | None:
    layout = None if node.inputs[0] is None else known.layouts.of(node.inputs[0])
    if layout is None:
        return None
    end = read_attribute(node, "end", len(layout))
    return [known.algebra.extent(one) for one in layout[read_attribute(node, "start", 0) : end]]


def _size(known: Sizes, node: ir.Node) -> Vector | None:
    layout = None if node.inputs[0] is None else known.layouts.of(node.inputs[0])
    return None if layout is None else [known.algebra.extent(sum(layout, ()))]


def _gather(known: Sizes, node: ir.Node) -> Vector | None:
    vector, indices = known.of(node.inputs[0]), known_integers(node, 1)
    return None if vector is None or indices is None else [vector[index] for index in indices]


def _slice(known: Sizes, node: ir.Node) -> Vector | None:
    vector = known.of(node.inputs[0])
    bounds = [known_integers(node, index) for index in range(1, len(node.inputs)) if index != 3]
    if vector is None or any(one is None or len(one) != 1 for one in bounds):
        return None
    return vector[slice(*(one[0] for one in bounds if one is not None))]


def _concat(known: Sizes, node: ir.Node) -> Vector | None:
    vectors = [known.of(value) for value in node.inputs]
    return None if None in vectors else [one for vector in vectors if vector is not None for one in vector]


def _same(known: Sizes, node: ir.Node) -> Vector | None:
    return known.of(node.inputs[0])


def _reduce_prod(known: Sizes, node: ir.Node) -> Vector | None:
    vector = known.of(node.inputs[0])
    result = number(1.0)
    for one in vector or []:
        result = multiply(result, one)
    return None if vector is None else [result]


def _mul(known: Sizes, node: ir.Node) -> Vector | None:
    a, b = known.of(node.inputs[0]), known.of(node.inputs[1])
    if a is None or b is None or min(len(a), len(b)) != 1:
        return None
    return [multiply(one, other) for one in a for other in b]


def _div(known: Sizes, node: ir.Node) -> Vector | None:
    """Only where nothing is rounded: a product divided by one of its factors."""
    a, b = known.of(node.inputs[0]), known.of(node.inputs[1])
    if a is None or b is None or len(a) != 1 or len(b) != 1 or len(b[0]) != 1:
        return None
    inverse = known.algebra.power(b[0], -2)
    result = None if inverse is None else multiply(a[0], inverse)
    whole = result is not None and all(
        value == int(value) and all(e > 0 for _, e in one) for one, value in result.items()
    )
    return [result] if whole and result is not None else None


def _add(known: Sizes, node: ir.Node) -> Vector | None:
    values = [known.of(value) for value in node.inputs[:2]]
    numbers = [as_number(vector[0]) if vector is not None and len(vector) == 1 else None for vector in values]
    if None in numbers:
        return None
    a, b = (one or 0.0 for one in numbers)
    return [number(a + b if node.op_type == "Add" else a - b)]


_RULES: dict[str, Callable[[Sizes, ir.Node], Vector | None]] = {
    "Shape": _shape,
    "Size": _size,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    **dict.fromkeys(("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"), _same),
    "ReduceProd": _reduce_prod,
    "Mul": _mul,
    "Div": _div,
    **dict.fromkeys(("Add", "Sub"), _add),
}
