"""Adds a gradient's contributions one after the other, and not all at once.

::

    dX = Sum(a, b, c)
    =>  t = Add(a, b);  dX = Add(t, c)

ONNX Runtime's Sum of two takes twice the time of its Add, and it holds all contributions until the last is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.opset.gradient_names import is_accumulation_node_name
from bngrad.passes.base import Context, RewritePass
from bngrad.passes.lower.site import Site

if TYPE_CHECKING:
    import onnx_ir as ir


class ChainSumsPass(RewritePass):
    """Rewrites every Sum by which a gradient builder accumulates, in the order of its inputs.

    Does not change: a Sum of the forward model, and one of a single value.
    """

    def matches(self, node: ir.Node) -> bool:
        """Returns whether a node is a Sum of several values by which a gradient builder accumulates."""
        accumulates = node.op_type == "Sum" and node.domain == "" and is_accumulation_node_name(node.name or "")
        return accumulates and len(node.inputs) > 1 and all(value is not None for value in node.inputs)

    def refusal(self, node: ir.Node) -> str | None:
        """Returns None: every such Sum can be rewritten."""

    def rewrite(self, node: ir.Node, context: Context) -> None:
        """Rewrites a Sum as a chain of Adds."""
        site = Site(node, context)
        total, *others = (value for value in node.inputs if value is not None)
        for value in others:
            total = site.op("Add", total, value)
        site.replace({0: total})
