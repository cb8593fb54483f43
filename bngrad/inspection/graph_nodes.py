"""The nodes of a model and which of them read which, as a page draws and lists them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bngrad.errors import ModelError
from bngrad.graph.node_paths import node_name
from bngrad.graph.nodes import op_nodes
from bngrad.graph.torch_source import source_line
from bngrad.opset.gradient_names import forward_node_name
from bngrad.opset.known_shapes import known_shape, size_text
from bngrad.passes.pipeline import reads_attribute
from bngrad.passes.prepare.infer_types import InferTypesPass
from bngrad.passes.prepare.inline_functions import ResolveAttributesPass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir


@dataclass(frozen=True)
class GraphNode:
    """A node of a model; constants are left out."""

    name: str
    """The name of the node, or of its first output."""
    op: str
    """The op, with its domain if that is not ai.onnx."""
    shape: str
    """The shape of the first output, as in ``Nx64x56x56``; empty if it is unknown or a scalar."""
    reads: tuple[int, ...]
    """The positions of the nodes whose outputs it reads."""
    source: str
    """The line of Python that it, or the node whose gradient it computes, was exported from; empty if unknown."""
    outputs: tuple[str, ...] = ()
    """The names of its outputs."""


def graph_nodes(model: ir.Model) -> list[GraphNode]:
    """Returns the nodes of a model, its subgraphs and its functions: at the positions that `inspect` gives.

    Args:
        model: Any model; it is not changed.
    """
    nodes = [node for node in op_nodes(typed_copy(model)) if node.op_type != "Constant"]
    positions = {node: position for position, node in enumerate(nodes)}
    sources = {str(node.name): source for node in nodes if node.name and (source := source_line(node))}
    return [_described(node, positions, sources) for node in nodes]


def typed_copy(model: ir.Model) -> ir.Model:
    """Returns a copy of a model with the types and shapes of its values, as far as they can be inferred."""
    model = model.clone()
    with suppress(ModelError):
        ResolveAttributesPass(reads_attribute)(model)
    InferTypesPass()(model)
    return model


def _described(node: ir.Node, positions: Mapping[ir.Node, int], sources: Mapping[str, str]) -> GraphNode:
    producers = [value.producer() for value in node.inputs if value is not None]
    reads = {positions[source] for source in producers if source is not None and source in positions}
    shape = known_shape(node.outputs[0]) if node.outputs else None
    return GraphNode(
        name=node_name(node),
        op=".".join(filter(None, (node.domain, node.op_type))),
        shape="x".join(map(size_text, shape or ())),
        reads=tuple(sorted(reads)),
        source=source_line(node) or sources.get(forward_node_name(node.name or "") or "", ""),
        outputs=tuple(str(value.name) for value in node.outputs if value.name),
    )


def neighbourhood(nodes: Sequence[GraphNode], centre: int, most: int) -> list[int]:
    """Returns the positions of the nodes nearest to a node, itself included, in graph order.

    Args:
        nodes: The nodes of the model.
        centre: The position of the node.
        most: The most nodes. Of those at the largest distance, those next to the node in graph order are taken.
    """
    readers: dict[int, list[int]] = {}
    for position, node in enumerate(nodes):
        for source in node.reads:
            readers.setdefault(source, []).append(position)
    chosen, ring = {centre}, {centre}
    while ring:
        near = {other for at in ring for other in (*nodes[at].reads, *readers.get(at, ()))} - chosen
        ring = set(sorted(near, key=lambda other: abs(other - centre))[: most - len(chosen)])
        chosen |= ring
    return sorted(chosen)
