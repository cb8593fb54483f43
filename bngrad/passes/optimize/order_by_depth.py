"""Sorts the nodes of a graph by depth, so that ONNX Runtime keeps less in memory.

ONNX Runtime does not run nodes as they are listed. It goes back from the last of the nodes whose results nothing
reads, from each node first to the input whose producer is listed last, and runs a node when all its inputs are
there: the node listed last runs first. So a mask of a forward value, or transposed weights, listed before the node
that reads them and after the gradient that it reads too, are computed before the whole path back to that gradient,
and kept. By depth, which is the longest path from a source, the gradient is listed last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.subgraphs import nodes_of, subgraphs

if TYPE_CHECKING:
    from collections.abc import Iterator


class OrderByDepthPass(ir.passes.InPlacePass):
    """Sorts the main graph by depth; nodes of one depth stay in the order that they had.

    Requires: every node comes after those whose results it reads.
    Guarantees: no node comes before one of a smaller depth.
    """

    def requires(self, model: ir.Model) -> None:
        """Every node comes after those whose results it reads."""
        later = {value for node in model.graph for value in node.outputs}
        for node in model.graph:
            if not later.isdisjoint(_read(node)):
                raise ir.passes.PreconditionError(f"{node.name} comes before a node whose result it reads")
            later.difference_update(node.outputs)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        levels = _levels(model.graph)
        before = [node for _, node in levels]
        after = [node for _, node in sorted(levels, key=lambda pair: pair[0])]
        if after == before:
            return ir.passes.PassResult(model, modified=False)
        model.graph.remove(before)
        model.graph.extend(after)
        return ir.passes.PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        """The nodes are in the order of their depth."""
        depths = [depth for depth, _ in _levels(model.graph)]
        if depths != sorted(depths):
            raise ir.passes.PostconditionError("the nodes are not in the order of their depth")


def _levels(graph: ir.Graph) -> list[tuple[int, ir.Node]]:
    """The nodes in their order, each with its depth."""
    depth: dict[ir.Value, int] = {}
    levels: list[tuple[int, ir.Node]] = []
    for node in graph:
        level = 1 + max((depth.get(value, 0) for value in _read(node)), default=0)
        depth.update(dict.fromkeys(node.outputs, level))
        levels.append((level, node))
    return levels


def _read(node: ir.Node) -> Iterator[ir.Value]:
    """Yields the values that a node reads: its inputs, and those of the nodes in its subgraphs."""
    yield from (value for value in node.inputs if value is not None)
    for graph in subgraphs(node):
        for inner in nodes_of(graph):
            yield from (value for value in inner.inputs if value is not None)
        yield from graph.outputs
