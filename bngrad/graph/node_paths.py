"""Paths of the nodes of a model: the nodes, or the function, whose bodies contain them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.graph.subgraphs import named_subgraphs

if TYPE_CHECKING:
    import onnx_ir as ir

SEPARATOR = "::"


def node_name(node: ir.Node) -> str:
    """Returns a node's name; that of its first output, or its op type, if it has none."""
    return node.name or (str(node.outputs[0].name) if node.outputs else node.op_type)


def node_paths(model: ir.Model) -> dict[ir.Node, str]:
    """Returns the path of each node: the names of the nodes or the function around it, then its own.

    A node in the main graph is ``bn``, one in a branch ``if_1::then_branch::bn``, one in a function
    ``my.domain.block::bn``.
    """
    paths: dict[ir.Node, str] = {}
    waiting: list[tuple[str, ir.Graph | ir.Function]] = [("", model.graph)]
    waiting += [
        (f"{domain}.{name}{SEPARATOR}" if domain else f"{name}{SEPARATOR}", function)
        for (domain, name, _), function in model.functions.items()
    ]
    while waiting:
        prefix, body = waiting.pop()
        for node in body:
            paths[node] = prefix + node_name(node)
            waiting += [
                (f"{paths[node]}{SEPARATOR}{name}{SEPARATOR}", graph) for name, graph in named_subgraphs(node)
            ]
    return paths
