"""Iteration over the nodes of a model, those behind values, their names in messages, and their removal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.errors import ModelError, UnsupportedNodeError
from bngrad.graph.subgraphs import captured_values, nodes_of
from bngrad.opset.functions import DOMAIN
from bngrad.opset.ort_dialect import MICROSOFT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import onnx_ir as ir

ORIGIN = "bngrad.origin"
"""The key in a node's ``meta`` for the name in messages of a node that a pass made."""


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yields every node of the main graph, of the functions, and of their subgraphs.

    The functions that define the ops of ``bngrad`` are left out.
    """
    yield from nodes_of(model.graph)
    for (domain, _, _), function in model.functions.items():
        if domain != DOMAIN:
            yield from nodes_of(function)


def op_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yields the nodes of `all_nodes` that are ops, not calls of the model's functions.

    The functions of the domain ``bngrad`` define its ops; calls of them count as ops.
    """
    functions = {key for key in model.functions if key[0] != DOMAIN}
    if not functions:
        return all_nodes(model)
    return (node for node in all_nodes(model) if node.op_identifier() not in functions)


def default_opset(model: ir.Model) -> int | None:
    """Returns the imported version of the default domain, "" or ai.onnx; None if a model imports neither."""
    return model.opset_imports.get("", model.opset_imports.get("ai.onnx"))


def describe(node: ir.Node) -> str:
    """Returns the name of a node in messages: that of the user's node that it was made from, if there is one."""
    if described := node.meta.get(ORIGIN):
        return str(described)
    domain = f"{node.domain}." if node.domain else ""
    return node_text(f"{domain}{node.op_type}", node.name, [value.name for value in node.outputs])


def node_text(op: str, name: str | None, outputs: Iterable[str | None]) -> str:
    """Returns a node as messages name it: "Conv node 'c' (outputs y)", without a name "Conv node (outputs y)"."""
    named = f"{op} node {name!r}" if name else f"{op} node"
    listed = ", ".join(str(output) for output in outputs if output)
    return f"{named} (outputs {listed})" if listed else named


def counted(nodes: Sequence[ir.Node], what: str) -> str:
    """Returns the number of nodes and the first of them as a phrase: "2 layers (first: ...)"."""
    plural, first = ("s", "first: ") if len(nodes) > 1 else ("", "")
    return f"{len(nodes)} {what}{plural} ({first}{describe(nodes[0])})"


def is_gradient(node: ir.Node) -> bool:
    """Returns whether a node is a gradient op, which only a training graph has.

    MaxPoolInputGrad of ``bngrad`` is not one: graphs of standard ONNX that have it can be differentiated again.
    """
    if (node.domain, node.op_type) == (DOMAIN, "MaxPoolInputGrad"):
        return False
    return node.op_type.endswith(("Grad", "GradSums", "GradApply")) and node.domain in ("", MICROSOFT, DOMAIN)


PRODUCT = "bngrad.product"
"""The key in the metadata of a model that `bngrad.vjp`, `jvp` or `hvp` made: it may be differentiated again."""


def refuse_training_graph(model: ir.Model, *, products: bool = True) -> None:
    """Refuses a model that has gradient nodes.

    Args:
        model: The model.
        products: Whether to accept a model that has them because it computes a product with a derivative.

    Raises:
        ModelError: The model has a gradient node; the message names it.
    """
    if products and PRODUCT in model.metadata_props:
        return
    for node in all_nodes(model):
        if is_gradient(node):
            raise ModelError(
                f"the model is a training graph already: it has {describe(node)}; pass the forward model"
            )


def raise_refusals(refusals: Sequence[tuple[ir.Node, str]]) -> None:
    """Raises one error for all the nodes that a pass cannot rewrite, with the name and reason of the first.

    Raises:
        UnsupportedNodeError: There is at least one.
    """
    if not refusals:
        return
    node, reason = refusals[0]
    others = f" (and {len(refusals) - 1} more)" if len(refusals) > 1 else ""
    raise UnsupportedNodeError(f"{describe(node)} cannot be rewritten: {reason}{others}")


def remove(nodes: Iterable[ir.Node]) -> None:
    """Removes unused nodes from their graphs.

    All nodes of a graph are removed at once, since onnx-ir scans the graph's outputs in every call.
    """
    by_graph: dict[ir.Graph, list[ir.Node]] = {}
    for node in nodes:
        by_graph.setdefault(owner(node), []).append(node)
    for graph, removed in by_graph.items():
        graph.remove(removed, safe=True)


def nodes_behind(values: Iterable[ir.Value], stops: Iterable[ir.Value] = ()) -> set[ir.Node]:
    """Returns the nodes that values are computed by.

    Args:
        values: Values of a graph.
        stops: Values of the graph before which no nodes are followed.
    """
    waiting = list(values)
    seen, nodes = {*stops, *waiting}, set()
    while waiting:
        node = waiting.pop().producer()
        if node is None:
            continue
        nodes.add(node)
        operands = {operand for operand in (*node.inputs, *captured_values(node)) if operand is not None}
        waiting += operands - seen
        seen |= operands
    return nodes


def remove_unused(nodes: Iterable[ir.Node]) -> None:
    """Removes the nodes among some that nothing reads, and the nodes before them that nothing else reads."""
    unused = dict.fromkeys(node for node in nodes if _is_unused(node))
    waiting = list(unused)
    while waiting:
        node = waiting.pop()
        inputs = list(node.inputs)
        for place in range(len(inputs)):
            node.replace_input_with(place, None)
        makers = dict.fromkeys(value.producer() for value in inputs if value is not None)
        new = [maker for maker in makers if maker is not None and maker not in unused and _is_unused(maker)]
        unused.update(dict.fromkeys(new))
        waiting += new
    remove(unused)


def _is_unused(node: ir.Node) -> bool:
    return not any(map(is_read, node.outputs))


def is_read(value: ir.Value) -> bool:
    """Returns whether a node reads a value, or it is an output of its graph."""
    return bool(value.uses()) or value.is_graph_output()


def known_rank(values: Iterable[ir.Value | None]) -> int | None:
    """Returns the rank of the first value with a known shape; None if there is none."""
    for value in values:
        if value is not None and value.shape is not None:
            return len(value.shape)
    return None


def owner(node: ir.Node) -> ir.Graph:
    """Returns the graph of a visited node; for a node of a function the function's graph."""
    assert node.graph is not None, "a node that a pass visits is in a graph"  # noqa: S101
    return node.graph
