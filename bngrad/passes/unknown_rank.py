"""A batch norm over dimension 1 whose rank nobody knows, as in the body of a function.

Its data is reshaped to [N, C, S] in front of the node and back behind it: a batch norm cannot tell the
difference, and ORT's Reshape moves no data. [0, 0, -1] also makes [N, C, 1] of rank 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.passes.constants import Names, int64_constant
from bngrad.passes.nodes import owner

if TYPE_CHECKING:
    from collections.abc import Sequence

COLLAPSED_AXES = (0, 2)
"""What to reduce over once the data is [N, C, S]."""


def collapse_spatial(node: ir.Node, inputs: Sequence[int], outputs: Sequence[int], names: Names) -> None:
    """Puts the reshapes around a node.

    Args:
        node: The node; what it reads and writes is reshaped data afterwards.
        inputs: The indices of its inputs that have X's shape.
        outputs: The indices of its outputs that have X's shape.
        names: Where new names come from.
    """
    graph, prefix = owner(node), node.name or node.op_type
    target = int64_constant((0, 0, -1), names.fresh(f"{prefix}_ncs"))
    x_shape = _named("Shape", [node.inputs[inputs[-1]]], names.fresh(f"{prefix}_x_shape"))
    graph.insert_before(node, [target, x_shape])
    for index in inputs:
        flat = _named("Reshape", [node.inputs[index], target.outputs[0]], names.fresh(f"{prefix}_ncs_{index}"))
        graph.insert_before(node, flat)
        node.replace_input_with(index, flat.outputs[0])
    for index in outputs:
        flat_value = node.outputs[index]
        if not flat_value.name:
            continue
        restore = _named("Reshape", [None, x_shape.outputs[0]], flat_value.name)
        flat_value.replace_all_uses_with(restore.outputs[0], replace_graph_outputs=True)
        restore.replace_input_with(0, flat_value)
        restore.name = flat_value.name = names.fresh(f"{prefix}_ncs_out_{index}")
        restore.outputs[0].type, restore.outputs[0].shape = flat_value.type, flat_value.shape
        flat_value.shape = None
        graph.insert_after(node, restore)


def _named(op_type: str, inputs: Sequence[ir.Value | None], name: str) -> ir.Node:
    node = ir.node(op_type, inputs, name=name)
    node.outputs[0].name = name
    return node
