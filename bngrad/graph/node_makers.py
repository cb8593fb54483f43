"""Makers of nodes at either end of a graph, before a node, or after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.builder import NodeMaker
from bngrad.graph.nodes import owner

if TYPE_CHECKING:
    from bngrad.graph.fresh_names import Names


class NodesAtEnd(NodeMaker):
    """Makes nodes at the end of a graph."""

    def __init__(self, graph: ir.Graph, names: Names, prefix: str) -> None:
        super().__init__(names, prefix)
        self._graph = graph
        self._ranks: dict[tuple[ir.Value, int], ir.Value] = {}

    def _place(self, node: ir.Node) -> None:
        self._graph.append(node)

    def typed(self, op_type: str, like: ir.Value, *others: ir.Value) -> ir.Value:
        """Makes an elementwise node; its output has the type and shape of its first input."""
        result = self.op(op_type, like, *others)
        result.type, result.shape = like.type, like.shape
        return result

    def where(self, condition: ir.Value, yes: ir.Value, no: ir.Value) -> ir.Value:
        """Returns one of two values of the same type and shape, by a scalar condition."""
        result = self.op("Where", self.of_rank_of(condition, no), yes, no)
        result.type, result.shape = no.type, no.shape
        return result

    def of_rank_of(self, scalar: ir.Value, other: ir.Value) -> ir.Value:
        """Reshapes a scalar to the rank of another value; each rank of a scalar is made once.

        ONNX Runtime takes 50 times as long for a scalar and an array whose last dimension is 1, such as the weight
        of a 1x1 convolution, unless their ranks are equal.
        """
        rank = 0 if other.shape is None else len(other.shape)
        if rank == 0:
            return scalar
        if (scalar, rank) not in self._ranks:
            result = self.op("Reshape", scalar, self.int64([1] * rank))
            result.type, result.shape = scalar.type, ir.Shape([1] * rank)
            self._ranks[scalar, rank] = result
        return self._ranks[scalar, rank]


class NodesBefore(NodeMaker):
    """Makes nodes before another node."""

    def __init__(self, successor: ir.Node, names: Names, prefix: str) -> None:
        super().__init__(names, prefix)
        self._successor = successor

    def _place(self, node: ir.Node) -> None:
        owner(self._successor).insert_before(self._successor, node)


class NodesAfter(NodeMaker):
    """Makes nodes after another node, in their order."""

    def __init__(self, predecessor: ir.Node, names: Names, prefix: str) -> None:
        super().__init__(names, prefix)
        self._last = predecessor

    def _place(self, node: ir.Node) -> None:
        owner(self._last).insert_after(self._last, node)
        self._last = node


def nodes_at_start(graph: ir.Graph, names: Names, prefix: str) -> NodeMaker:
    """Returns a maker of nodes before all nodes that a graph has now."""
    return NodesBefore(graph[0], names, prefix) if len(graph) else NodesAtEnd(graph, names, prefix)
