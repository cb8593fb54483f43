"""Moving the nodes of a body to the graph around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.graph.nodes import owner
from bngrad.graph.subgraphs import nodes_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx_ir as ir


def move_before(node: ir.Node, body: ir.Graph, rename: Callable[[ir.Value], None]) -> None:
    """Moves the initializers and nodes of a body before the node that it is of.

    Args:
        node: The node.
        body: The body, whose outputs must have been taken off, and whose inputs nothing may read.
        rename: A function that renames a value where the graph of the node has its name.
    """
    graph = owner(node)
    for value in list(body.initializers.values()):
        del body.initializers[str(value.name)]
        rename(value)
        graph.register_initializer(value)
    nodes = list(body)
    body.remove(nodes)
    for value in (value for inner in nodes_of(nodes) for value in inner.outputs):
        rename(value)
    graph.insert_before(node, nodes)


def set_name(value: ir.Value, name: str) -> None:
    """Renames a value, but not its tensor, which may be another model's."""
    tensor, value.const_value = value.const_value, None
    value.name = name
    value.const_value = tensor
