"""The subgraphs of a node: the branches of an If, the body of a Loop or a Scan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx


def subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """Yields the graphs among a node's attributes, in their order."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def proto_subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The same for a node as a file has it."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs
