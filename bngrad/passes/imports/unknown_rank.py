"""Reshapes the data of a batch norm over dimension 1 whose rank is 1 or unknown, as in a function body.

The data is reshaped to [N, C, S] before the node and back after it. The result of a batch norm does not change,
and ORT's Reshape copies no data. S is computed as the product of the remaining sizes, which is 1 if there are
none. A size of -1 would be ambiguous for an empty batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.batch_norm_terms import collapsed_shape
from bngrad.graph.node_makers import NodesBefore
from bngrad.graph.nodes import owner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.graph.fresh_names import Names

COLLAPSED_AXES = (0, 2)
"""The reduction axes of data of shape [N, C, S]."""


def collapse_spatial(node: ir.Node, inputs: Sequence[int], outputs: Sequence[int], names: Names) -> None:
    """Inserts the reshapes around a node.

    Args:
        node: The node; it reads and writes reshaped data afterwards.
        inputs: The indices of its inputs that have X's shape.
        outputs: The indices of its outputs that have X's shape.
        names: The source of new names.
    """
    make = NodesBefore(node, names, node.name or node.op_type)
    x = node.inputs[inputs[-1]]
    assert x is not None, "a node without X is refused"  # noqa: S101
    original_shape, collapsed = make.op("Shape", x), collapsed_shape(make, x)
    for index in inputs:
        data = node.inputs[index]
        assert data is not None, "a node without its data is refused"  # noqa: S101
        # Without allowzero, Reshape reads a size of 0 as "copy the input's size".
        flat = make.op("Reshape", data, collapsed, allowzero=1)
        # The type of X decides which functions are embedded.
        if data.dtype is not None:
            flat.dtype, flat.shape = data.dtype, ir.Shape([None, None, None])
        node.replace_input_with(index, flat)
    for index in outputs:
        flat = node.outputs[index]
        if not flat.name:
            continue
        name = names.fresh(f"{node.name or node.op_type}_ncs_{index}")
        restore = ir.node("Reshape", [None, original_shape], {"allowzero": 1}, name=name)
        ir.convenience.replace_nodes_and_values(owner(node), node, [], [restore], [flat], restore.outputs)
        restore.replace_input_with(0, flat)
        flat.name, flat.shape = name, None
