"""Detects replacements that depend on each other in a cycle, before they are put into a graph.

The statistics of a bngrad op depend on its scale and bias, which those of a batch norm in primitives do not. So
the scales of two batch norms may each depend on the statistics of the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.graph.subgraphs import subgraphs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import onnx_ir as ir


def values_in_cycle(replaced: Mapping[ir.Value, ir.Value]) -> list[ir.Value]:
    """The values of one cycle that would be replaced; empty if there is no cycle.

    Args:
        replaced: The replacement of each value, for all its readers.
    """
    done: set[ir.Node] = set()
    for root in {node for value in replaced.values() if (node := value.producer()) is not None}:
        path: dict[ir.Node, ir.Value | None] = {}
        waiting: list[tuple[ir.Node, Iterator[ir.Value]]] = []
        following: tuple[ir.Node, ir.Value | None] | None = (root, None)
        while following is not None or waiting:
            if following is not None:
                node, through = following
                path[node] = through
                waiting.append((node, _operands(node)))
            node, operands = waiting[-1]
            following = None
            for old in operands:
                maker = replaced.get(old, old).producer()
                if maker in path:
                    places = list(path)
                    cycle = [*(path[visited] for visited in places[places.index(maker) + 1 :]), old]
                    return [value for value in cycle if value is not None and value in replaced]
                if maker is not None and maker not in done:
                    following = maker, old
                    break
            else:
                waiting.pop()
                path.pop(node)
                done.add(node)
    return []


def _operands(node: ir.Node) -> Iterator[ir.Value]:
    """The inputs of a node, and the outer values that its subgraphs read."""
    yield from (value for value in node.inputs if value is not None)
    for graph in subgraphs(node):
        yield from graph.outputs
        for inner in graph:
            yield from _operands(inner)
