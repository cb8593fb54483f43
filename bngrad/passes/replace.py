"""Putting new nodes in the place of a foreign one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.graph.builder import NodeMaker
from bngrad.graph.nodes import owner, raise_refusals
from bngrad.opset.functions import DOMAIN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir

    from bngrad.passes.base import Context


class Emitter(NodeMaker):
    """Makes nodes in front of a foreign node, and then takes that node out.

    Every new node and value is named after the foreign node; the first node of ours takes over its name, doc
    string and metadata.

    Args:
        node: The foreign node.
        context: The model's.
    """

    def __init__(self, node: ir.Node, context: Context) -> None:
        super().__init__(context.names, node.name or node.op_type)
        self._node = node
        self._context = context
        self._successor: ir.Node | None = None

    def axes(self, axes: Sequence[int]) -> ir.Value:
        """Returns the constant for reduction axes."""
        return self._context.axes.value(self._node, tuple(axes))

    def replace(self, outputs: Mapping[int, ir.Value]) -> None:
        """Takes the foreign node out.

        Args:
            outputs: What takes the place, and the name, of its outputs, by index. A value may be there twice, or
                be an input of the foreign node.

        Raises:
            UnsupportedNodeError: An output that is not there has a user.
        """
        for index, value in enumerate(self._node.outputs):
            if index not in outputs and (value.uses() or value.is_graph_output()):
                known = ", ".join(str(self._node.outputs[i].name) for i in sorted(outputs)) or "its inputs"
                reason = f"its output {value.name!r} is used; expected none but {known}"
                raise_refusals([(self._node, reason)])
        for index, value in outputs.items():
            old = self._node.outputs[index]
            if not old.name:
                continue
            name, old.name = old.name, self.names.fresh(f"{self._prefix}_replaced")
            new = self.name(value, name)
            new.type, new.shape = old.type or new.type, old.shape or new.shape
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        for index in range(len(self._node.inputs)):
            # Until it is removed, it must not count as a reader of its inputs.
            self._node.replace_input_with(index, None)
        self._context.replaced.append(self._node)

    def _node_name(self, domain: str, op_type: str) -> str:
        takes_over = self._takes_over(domain, op_type) and self._node.name
        return takes_over or super()._node_name(domain, op_type)

    def _place(self, node: ir.Node) -> None:
        self._context.ours += node.domain == DOMAIN
        if self._takes_over(node.domain, node.op_type):
            self._successor = node
            node.doc_string = self._node.doc_string
            node.metadata_props.update(self._node.metadata_props)
        owner(self._node).insert_before(self._node, node)

    def _takes_over(self, domain: str, op_type: str) -> bool:
        """Whether a new node stands for the foreign one: the first of ours, statistics aside."""
        return self._successor is None and domain == DOMAIN and op_type != "BatchNormalizationStatistics"
