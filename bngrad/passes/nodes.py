"""What the import passes share: which nodes they look at, and why they refuse one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.errors import UnsupportedNodeError
from bngrad.reference import MAX_RANK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SUPPORTED_DTYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yields every node of the main graph, of its subgraphs, and of the model's functions and theirs."""
    yield from ir.traversal.RecursiveGraphIterator(model.graph)
    for function in model.functions.values():
        yield from ir.traversal.RecursiveGraphIterator(function)


def default_opset(model: ir.Model) -> int | None:
    """The version of the default domain that a model imports, by either of its names; None if it does not."""
    return model.opset_imports.get("", model.opset_imports.get("ai.onnx"))


def describe(node: ir.Node) -> str:
    """How an error names a node."""
    domain = f"{node.domain}." if node.domain else ""
    outputs = ", ".join(str(v.name) for v in node.outputs if v.name)
    return f"{domain}{node.op_type} node {node.name!r} (outputs {outputs})"


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


def known_rank(values: Iterable[ir.Value | None]) -> int | None:
    """The rank that the first value with a known shape has; None where none is known."""
    for value in values:
        if value is not None and value.shape is not None:
            return len(value.shape)
    return None


def refusal(
    node: ir.Node, *, inputs: int, data: Sequence[int], minimum_rank: int, layout: str = "NC..."
) -> str | None:
    """Why a foreign batch-norm node cannot become one of ours; None if it can.

    Args:
        node: The node.
        inputs: How many inputs it must have, all present.
        data: The indices of the inputs that have X's shape.
        minimum_rank: The lowest rank that this kind of node has.
        layout: What the rank is of, for the message.
    """
    present = [value for value in node.inputs if value is not None]
    if len(present) != inputs or len(node.inputs) != inputs:
        given = str(len(present)) if len(present) == len(node.inputs) else f"{len(present)} of {len(node.inputs)}"
        return f"it has {given} inputs; expected {inputs}, all present"
    for value in present:
        if value.dtype not in (None, *SUPPORTED_DTYPES):
            expected = " or ".join(dtype.name.lower() for dtype in SUPPORTED_DTYPES)
            return f"its input {value.name!r} is {value.dtype.name.lower()}; expected {expected}"
    rank = known_rank(node.inputs[i] for i in data)
    if rank is not None and not minimum_rank <= rank <= MAX_RANK:
        return f"its X has rank {rank}; expected {minimum_rank} to {MAX_RANK} ({layout})"
    return None


def owner(node: ir.Node) -> ir.Graph | ir.Function:
    """The graph or function that a visited node is in."""
    assert node.graph is not None, "a node that a pass visits is in a graph"  # noqa: S101
    return node.graph
