"""The subgraphs of a node: the branches of an If, the body of a Loop or a Scan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import onnx


_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def nodes_of(graph: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Yields the nodes of a graph or a function, each before those of its subgraphs.

    `onnx_ir.traversal` takes three times as long, which was a tenth of the time of the passes.
    """
    for node in graph:
        yield node
        for attribute in node.attributes.data.values():
            if attribute.type in _GRAPHS:
                for _, subgraph in _graphs_of(attribute):
                    yield from nodes_of(subgraph)


def subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """Yields the graphs among a node's attributes, in their order."""
    yield from (graph for _, graph in named_subgraphs(node))


def named_subgraphs(node: ir.Node) -> Iterator[tuple[str, ir.Graph]]:
    """Yields the subgraphs of a node with their names: ``then_branch``, or ``graphs[0]`` in a list."""
    for attribute in node.attributes.values():
        yield from _graphs_of(attribute)


def captured_values(node: ir.Node) -> list[ir.Value]:
    """Returns the values around the subgraphs of a node that these read, in the order of reading."""
    captured: dict[ir.Value, None] = {}
    for graph in subgraphs(node):
        inside = {value for inner in nodes_of(graph) for value in inner.outputs}
        for body in (graph, *(body for inner in nodes_of(graph) for body in subgraphs(inner))):
            inside.update(body.inputs, body.initializers.values())
        values = [value for inner in nodes_of(graph) for value in inner.inputs if value is not None]
        captured.update(dict.fromkeys(value for value in (*values, *graph.outputs) if value not in inside))
    return list(captured)


def detach(nodes: Iterable[ir.Node]) -> None:
    """Removes the inputs of nodes and of their subgraphs, which count as readers of the values otherwise."""
    for node in nodes_of(nodes):
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)


def _graphs_of(attribute: ir.Attr) -> Iterator[tuple[str, ir.Graph]]:
    if attribute.is_ref():
        return
    if attribute.type == ir.AttributeType.GRAPH:
        yield attribute.name, attribute.as_graph()
    elif attribute.type == ir.AttributeType.GRAPHS:
        yield from ((f"{attribute.name}[{index}]", graph) for index, graph in enumerate(attribute.as_graphs()))


def proto_subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yields the subgraphs of a node as it is in a file."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs
