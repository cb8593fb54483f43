"""The layouts of the values of a graph, as `axes` defines them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.errors import UnsupportedNodeError
from bngrad.passes.imports.decomposed.axes import Axes
from bngrad.passes.imports.decomposed.constants import uniform_number
from bngrad.passes.imports.decomposed.ops.record import op_of, sizes_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    import onnx_ir as ir

    from bngrad.passes.imports.decomposed.axes import Layout


class Layouts:
    """The layouts of the values of one graph, whose nodes are visited in order.

    Args:
        graph: A graph, a subgraph, or the graph of a function; its values have inferred types.
        kept: Initializers that are not constants, such as weights, though all their elements may be equal.
    """

    def __init__(self, graph: Iterable[ir.Node], kept: Collection[ir.Value]) -> None:
        self.axes = Axes()
        self._kept = kept
        self._filled: dict[ir.Value, float | None] = {}
        self.explained: set[ir.Node] = set()
        """The nodes whose rule gave the layout of their output."""
        self._reduced: list[Layout] = []
        """The dimensions that each reduction of the first dimension reduces, if it keeps others."""
        self._found: dict[ir.Value, Layout | None] = {}
        self._resolved: dict[ir.Value, Layout | None] | None = None
        for node in graph:
            self._visit(node)
        self._resolved = {}  # no axis becomes equal to another, or is split, from now on

    def of(self, value: ir.Value) -> Layout | None:
        """The layout of a value; None if its rank is unknown, or an axis occurs in two of its dimensions."""
        if self._resolved is None:
            return self._resolve(value)
        if value not in self._resolved:
            self._resolved[value] = self._resolve(value)
        return self._resolved[value]

    def _resolve(self, value: ir.Value) -> Layout | None:
        if value not in self._found:
            sizes = sizes_of(value)
            self._found[value] = None if sizes is None else self.axes.layout(sizes)
        layout = self._found[value]
        if layout is None:
            return None
        layout = self.axes.resolve(layout)
        axes = [axis for dimension in layout for axis in dimension]
        return layout if len(set(axes)) == len(axes) else None

    def filled(self, value: ir.Value | None) -> float | None:
        """The number that a constant is filled with; None for other values."""
        if value is None or value in self._kept:
            return None
        if value not in self._filled:
            self._filled[value] = uniform_number(value)
        return self._filled[value]

    def at(self, value: ir.Value) -> Layout | None:
        """The layout of an input at one reader: constants that are one number do not connect their readers."""
        if self.filled(value) is None:
            return self.of(value)
        sizes = sizes_of(value)
        return None if sizes is None else self.axes.layout(sizes)

    def batch_axes(self) -> frozenset[int]:
        """The axes that are reduced along with the first dimension of data: parameters do not have them."""
        dimensions = (self.axes.basic(dimension) for layout in self._reduced for dimension in layout)
        return frozenset(axis for dimension in dimensions for axis in dimension)

    def note_reduction(self, reduced: Layout, kept: Layout) -> None:
        """Records a reduction that reduces the first dimension."""
        if any(kept):
            self._reduced.append(reduced)

    def assign(self, value: ir.Value, layout: Layout) -> None:
        """Sets the layout of a new value."""
        self._found[value] = layout
        if self._resolved is not None:
            self._resolved.pop(value, None)

    def _visit(self, node: ir.Node) -> None:
        op = op_of(node)
        if op.layout is None or not node.outputs:
            return
        first = self.of_input(node) if op.operands != 0 else ()
        try:
            layout = None if first is None else op.layout(self, node, first)
        except (UnsupportedNodeError, IndexError):  # it is malformed, or its attributes are those of a function
            return
        if layout is not None:
            self._found[node.outputs[0]] = layout
            if op.form is not None:
                self.explained.add(node)

    def of_input(self, node: ir.Node, index: int = 0) -> Layout | None:
        """The layout of an input."""
        value = node.inputs[index] if index < len(node.inputs) else None
        return None if value is None else self.at(value)
