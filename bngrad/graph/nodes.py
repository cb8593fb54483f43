"""What passes share: which nodes they look at, and why they refuse one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.errors import ModelError, UnsupportedNodeError
from bngrad.opset.functions import DOMAIN
from bngrad.opset.ort_dialect import MICROSOFT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

ORIGIN = "bngrad.origin"
"""The key in a node's ``meta`` for how errors name it, where it is not one that the user has."""


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yields every node of the main graph and its subgraphs, and of the functions and theirs.

    The functions that define our own ops are left out: they are no part of the model, but of this package.
    """
    yield from ir.traversal.RecursiveGraphIterator(model.graph)
    for (domain, _, _), function in model.functions.items():
        if domain != DOMAIN:
            yield from ir.traversal.RecursiveGraphIterator(function)


def op_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yields those of `all_nodes` that are ops: a call of a model's function is what the function says.

    Our own functions are the definitions of our ops.
    """
    functions = {key for key in model.functions if key[0] != DOMAIN}
    return (node for node in all_nodes(model) if node.op_identifier() not in functions)


def default_opset(model: ir.Model) -> int | None:
    """The version of the default domain that a model imports, by either of its names; None if it does not."""
    return model.opset_imports.get("", model.opset_imports.get("ai.onnx"))


def describe(node: ir.Node) -> str:
    """How an error names a node: as the user has it, where a pass made it of another one."""
    if described := node.meta.get(ORIGIN):
        return str(described)
    domain = f"{node.domain}." if node.domain else ""
    outputs = ", ".join(str(v.name) for v in node.outputs if v.name)
    return f"{domain}{node.op_type} node {node.name!r} (outputs {outputs})"


def is_gradient(node: ir.Node) -> bool:
    """Whether a node is a gradient's, which only a training graph has."""
    return node.op_type.endswith("Grad") and node.domain in ("", MICROSOFT, DOMAIN)


def refuse_training_graph(model: ir.Model) -> None:
    """Sees to it that a model is a forward one.

    Raises:
        ModelError: There is a gradient's node in it, which is named.
    """
    for node in all_nodes(model):
        if is_gradient(node):
            raise ModelError(
                f"the model is a training graph already: it has {describe(node)}; give the forward model"
            )


def raise_refusals(refusals: Sequence[tuple[ir.Node, str]]) -> None:
    """Raises one error for all the nodes that a pass cannot rewrite, the first of them named with its reason.

    Raises:
        UnsupportedNodeError: There is at least one.
    """
    if not refusals:
        return
    node, reason = refusals[0]
    others = f" (and {len(refusals) - 1} more)" if len(refusals) > 1 else ""
    raise UnsupportedNodeError(f"{describe(node)} cannot be rewritten: {reason}{others}")


def remove(nodes: Iterable[ir.Node]) -> None:
    """Takes nodes that nothing reads out of their graphs.

    All nodes of a graph at once, for onnx-ir goes through the graph's outputs each time that it is asked.
    """
    by_graph: dict[ir.Graph, list[ir.Node]] = {}
    for node in nodes:
        by_graph.setdefault(owner(node), []).append(node)
    for graph, removed in by_graph.items():
        graph.remove(removed, safe=True)


def known_rank(values: Iterable[ir.Value | None]) -> int | None:
    """The rank that the first value with a known shape has; None where none is known."""
    for value in values:
        if value is not None and value.shape is not None:
            return len(value.shape)
    return None


def owner(node: ir.Node) -> ir.Graph:
    """The graph that a visited node is in; for a node of a function that is the function's."""
    assert node.graph is not None, "a node that a pass visits is in a graph"  # noqa: S101
    return node.graph
