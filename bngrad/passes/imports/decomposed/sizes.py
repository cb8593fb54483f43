"""Integers that a graph computes from shapes: the elements of small vectors, as polynomials of sizes of axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.errors import UnsupportedNodeError
from bngrad.graph.node_reader import constant_of
from bngrad.passes.imports.decomposed.ops.record import INTEGERS, op_of
from bngrad.passes.imports.decomposed.polynomial import number

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.passes.imports.decomposed.algebra import Algebra
    from bngrad.passes.imports.decomposed.layouts import Layouts
    from bngrad.passes.imports.decomposed.polynomial import Vector

_LONGEST = 16


class Sizes:
    """The known integers of one graph, whose nodes are visited in order."""

    def __init__(self, layouts: Layouts, algebra: Algebra) -> None:
        self.layouts, self.algebra = layouts, algebra
        self._found: dict[ir.Value, Vector] = {}

    def of(self, value: ir.Value | None) -> Vector | None:
        """The elements of a vector or scalar; None if they are unknown."""
        if value is None or value in self._found:
            return None if value is None else self._found[value]
        if value.dtype not in INTEGERS:
            return None
        array = constant_of(value)
        # A graph may state another type for a value than its constant has.
        if array is None or array.dtype.kind not in "iu" or array.ndim > 1 or array.size > _LONGEST:
            return None
        return [number(float(element)) for element in array.ravel()]

    def knows(self, node: ir.Node) -> bool:
        """Returns whether a node reads sizes that an earlier node computed."""
        return bool(node.inputs) and node.inputs[0] in self._found

    def visit(self, node: ir.Node) -> None:
        """Finds the output of a node."""
        op = op_of(node)
        if op.sizes is None or not node.outputs:
            return
        if node.outputs[0].dtype not in INTEGERS and not (op.float_sizes and self.knows(node)):
            return
        operands = [self.of(value) for value in node.inputs[: op.operands]]
        try:
            vector = None if None in operands else op.sizes(self, node, *operands)
        except (UnsupportedNodeError, IndexError, TypeError):
            # The node is malformed, such as one without an operand, or its attributes are those of a function.
            return
        if vector is not None and len(vector) <= _LONGEST:
            self._found[node.outputs[0]] = vector
