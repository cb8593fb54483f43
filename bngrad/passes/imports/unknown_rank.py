"""A batch norm over dimension 1 whose rank is not known, as in the body of a function, or is 1.

Its data is reshaped to [N, C, S] in front of the node and back behind it: a batch norm cannot tell the
difference, and ORT's Reshape moves no data. S is computed as the product of the other extents, 1 where there is
none: -1 for it would do but for an empty batch, which says nothing about the extent that is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.batch_norm_terms import collapsed_shape
from bngrad.graph.builder import NodeMaker
from bngrad.graph.nodes import owner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.graph.fresh_names import Names

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
    make = _InFront(node, names)
    x = node.inputs[inputs[-1]]
    assert x is not None, "a batch norm has X"  # noqa: S101
    whole, collapsed = make.op("Shape", x), collapsed_shape(make, x)
    for index in inputs:
        data = node.inputs[index]
        assert data is not None, "a batch norm has its data"  # noqa: S101
        # An extent of 0 is 0, and not that of the input at the same place.
        flat = make.op("Reshape", data, collapsed, allowzero=1)
        # Which functions are embedded depends on the type of X.
        if data.dtype is not None:
            flat.dtype, flat.shape = data.dtype, ir.Shape([None, None, None])
        node.replace_input_with(index, flat)
    for index in outputs:
        flat = node.outputs[index]
        if not flat.name:
            continue
        name = names.fresh(f"{node.name or node.op_type}_ncs_{index}")
        restore = ir.node("Reshape", [None, whole], {"allowzero": 1}, name=name)
        ir.convenience.replace_nodes_and_values(owner(node), node, [], [restore], [flat], restore.outputs)
        restore.replace_input_with(0, flat)
        flat.name, flat.shape = name, None


class _InFront(NodeMaker):
    """Makes nodes in front of one.

    Args:
        node: The one.
        names: Where names come from.
    """

    def __init__(self, node: ir.Node, names: Names) -> None:
        super().__init__(names, node.name or node.op_type)
        self._node = node

    def _place(self, node: ir.Node) -> None:
        owner(self._node).insert_before(self._node, node)
