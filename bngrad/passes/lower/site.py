"""One training op that is lowered: gives a lowering access to the node, and inserts its new nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.graph.node_site import NodeSite
from bngrad.opset.gradient_names import forward_node_name
from bngrad.passes.replace import Emitter

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from bngrad.passes.base import Context


class Site(Emitter, NodeSite):
    """A node of ORT's training dialect, before which its standard form is inserted.

    Args:
        node: The node.
        context: The model's.
        ordered: Whether ONNX Runtime has to keep to an order of nodes that saves memory. That takes integers,
            which are computed on the CPU.
    """

    def __init__(self, node: ir.Node, context: Context, *, ordered: bool = False) -> None:
        super().__init__(node, context)
        self.ordered = ordered
        self.node = node
        self.context = context
        self.opset = context.opset

    def reduce(self, op_type: str, x: ir.Value, axes: Sequence[int], *, keepdims: bool) -> ir.Value:
        """Inserts a reduction over axes, which only ReduceSum takes as an input at opsets below 18."""
        if self.opset < 18 and op_type != "ReduceSum":
            return self.op(op_type, x, axes=list(axes), keepdims=int(keepdims))
        return self.op(op_type, x, self.int64(list(axes)), keepdims=int(keepdims))


def forward_node(node: ir.Node) -> ir.Node | None:
    """The forward node of a gradient node, as both builders name them: ``<forward>_Grad/<op>_<i>``.

    None if the same graph has no node of that name.
    """
    name = forward_node_name(node.name or "")
    if name is None or node.graph is None:
        return None
    return next((other for other in node.graph if other.name == name), None)
