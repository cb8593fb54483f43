"""An Attention with past keys, of which ONNX Runtime requires the present keys and values as outputs.

Its kernel (seen in 1.32) fails without them, and shape inference leaves the past keys out of the fourth output.
onnx-ir removes optional outputs that nothing reads. ::

    y, "", present_value = Attention(q, k, v, mask, past_key, past_value)
    =>  y, present_key, present_value = Attention(q, k, v, mask, past_key, past_value)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx_ir.passes.common import RemoveUnusedNodesPass

from bngrad.graph.fresh_names import Names
from bngrad.graph.nodes import all_nodes

if TYPE_CHECKING:
    import onnx_ir as ir

_PAST, _PRESENT = 4, (1, 2)


def remove_unused_nodes(model: ir.Model) -> None:
    """Removes nodes and outputs that nothing reads, except the present keys of an Attention with past ones."""
    kept = {
        node: {index: node.outputs[index] for index in _PRESENT if index < len(node.outputs)}
        for node in all_nodes(model)
        if (node.domain, node.op_type) == ("", "Attention") and len(node.inputs) > _PAST and node.inputs[_PAST]
    }
    called = {node: {index: value.name for index, value in outputs.items()} for node, outputs in kept.items()}
    RemoveUnusedNodesPass()(model)
    nodes = [node for node in all_nodes(model) if node in kept]
    names = Names(model) if nodes else None
    for node in nodes:
        assert names is not None, "there is a node"  # noqa: S101
        node.resize_outputs(max(len(node.outputs), 1 + _PRESENT[-1]))
        for index in _PRESENT:
            value, old = node.outputs[index], kept[node].get(index)
            if not value.name:
                value.name = called[node].get(index) or names.fresh(f"{node.outputs[0].name}_{index}")
            if old is not None and value is not old:
                value.type, value.shape = old.type, old.shape
