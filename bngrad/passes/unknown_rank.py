"""A batch norm over dimension 1 whose rank nobody knows, as in the body of a function.

Its data is reshaped to [N, C, S] in front of the node and back behind it: a batch norm cannot tell the
difference, and ORT's Reshape moves no data. S is computed as the product of the other extents, 1 where there is
none: -1 for it would do but for an empty batch, which says nothing about the extent that is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.passes.nodes import owner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.passes.constants import Names

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
    x = node.inputs[inputs[-1]]
    x_shape = _named("Shape", [x], names.fresh(f"{prefix}_x_shape"))
    n_c = _named("Shape", [x], names.fresh(f"{prefix}_n_c"), end=2)
    spatial = _named("Shape", [x], names.fresh(f"{prefix}_spatial"), start=2)
    s = _named("ReduceProd", [spatial.outputs[0]], names.fresh(f"{prefix}_s"), keepdims=1)
    target = _named("Concat", [n_c.outputs[0], s.outputs[0]], names.fresh(f"{prefix}_ncs"), axis=0)
    graph.insert_before(node, [x_shape, n_c, spatial, s, target])
    for index in inputs:
        flat = _reshape(node.inputs[index], target, names.fresh(f"{prefix}_ncs_{index}"))
        graph.insert_before(node, flat)
        node.replace_input_with(index, flat.outputs[0])
    for index in outputs:
        flat_value = node.outputs[index]
        if not flat_value.name:
            continue
        restore = _reshape(None, x_shape, flat_value.name)
        flat_value.replace_all_uses_with(restore.outputs[0], replace_graph_outputs=True)
        restore.replace_input_with(0, flat_value)
        restore.name = flat_value.name = names.fresh(f"{prefix}_ncs_out_{index}")
        restore.outputs[0].type, restore.outputs[0].shape = flat_value.type, flat_value.shape
        flat_value.shape = None
        graph.insert_after(node, restore)


def _reshape(value: ir.Value | None, shape: ir.Node, name: str) -> ir.Node:
    # An extent of 0 is 0, and not that of the input at the same place.
    result = _named("Reshape", [value, shape.outputs[0]], name, allowzero=1)
    if value is not None and value.dtype is not None:
        # Which functions are embedded depends on the type of X.
        result.outputs[0].dtype = value.dtype
    return result


def _named(op_type: str, inputs: Sequence[ir.Value | None], name: str, **attributes: int) -> ir.Node:
    node = ir.node(op_type, inputs, attributes, name=name)
    node.outputs[0].name = name
    return node
