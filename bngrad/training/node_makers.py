"""Makers of nodes at the ends of a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.graph.builder import NodeMaker

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.graph.fresh_names import Names


class NodesAtEnd(NodeMaker):
    """Makes nodes at the end of a graph."""

    def __init__(self, graph: ir.Graph, names: Names, prefix: str) -> None:
        super().__init__(names, prefix)
        self._graph = graph

    def _place(self, node: ir.Node) -> None:
        self._graph.append(node)

    def typed(self, op_type: str, like: ir.Value, *others: ir.Value) -> ir.Value:
        """Makes an elementwise node; its output has the type and shape of its first input."""
        result = self.op(op_type, like, *others)
        result.type, result.shape = like.type, like.shape
        return result


class NodesAtStart(NodeMaker):
    """Makes nodes in front of all nodes that a graph has when this is made."""

    def __init__(self, graph: ir.Graph, names: Names, prefix: str) -> None:
        super().__init__(names, prefix)
        self._graph = graph
        self._first = graph[0] if len(graph) else None

    def _place(self, node: ir.Node) -> None:
        if self._first is None:
            self._graph.append(node)
        else:
            self._graph.insert_before(self._first, node)
