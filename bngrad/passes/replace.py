"""Replaces a foreign node by new nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.graph.builder import NodeMaker
from bngrad.graph.nodes import owner, raise_refusals
from bngrad.opset.functions import DOMAIN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir

    from bngrad.passes.base import Context


_WITHOUT_DATA = (
    *("AllGather", "BatchNormalizationGradSums", "BatchNormalizationMergeMoments", "BatchNormalizationMoments"),
    *("BatchNormalizationReluGradSums", "BatchNormalizationStatistics"),
)
"""The ops of ``bngrad`` whose outputs are statistics and sums."""


class Emitter(NodeMaker):
    """Inserts new nodes before a foreign node and then removes that node.

    Every new node and value is named after the foreign node. The first op of ``bngrad`` that computes Y or dX
    takes over its name, doc string and metadata.

    Args:
        node: The foreign node.
        context: The context of the model's rewrites.
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
        """Replaces the outputs of the foreign node, which the pass removes later.

        Args:
            outputs: The values that replace the node's outputs, by index; they take over the names. A value may
                occur twice, or be an input of the foreign node.

        Raises:
            UnsupportedNodeError: An output that is not in ``outputs`` is used.
        """
        for index, value in enumerate(self._node.outputs):
            if index not in outputs and (value.uses() or value.is_graph_output()):
                replaced = ", ".join(str(self._node.outputs[i].name) for i in sorted(outputs)) or "its inputs"
                reason = f"its output {value.name!r} is used; expected only {replaced}"
                raise_refusals([(self._node, reason)])
        for index, value in outputs.items():
            old = self._node.outputs[index]
            if not old.name:
                continue
            name, old.name = old.name, self.names.fresh(f"{self._prefix}_replaced")
            new = self.name(value, name)
            new.type, new.shape = old.type or new.type, old.shape or new.shape
            new.metadata_props.update(old.metadata_props)
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        for index in range(len(self._node.inputs)):
            # The inputs must not appear used while the node waits for its removal.
            self._node.replace_input_with(index, None)
        self._context.replaced.append(self._node)

    def take_over(self, node: ir.Node | None) -> None:
        """Gives a new node of standard ONNX the name, doc string and metadata of the foreign node."""
        assert node is not None, "the rewrite has just made it"  # noqa: S101
        node.name = self._node.name
        self._describe(node)

    def _describe(self, node: ir.Node) -> None:
        node.doc_string = self._node.doc_string
        node.metadata_props.update(self._node.metadata_props)
        node.meta.update(self._node.meta)

    def _node_name(self, domain: str, op_type: str) -> str:
        takes_over = self._takes_over(domain, op_type) and self._node.name
        return takes_over or super()._node_name(domain, op_type)

    def _place(self, node: ir.Node) -> None:
        self._context.bngrad_ops += node.domain == DOMAIN
        if self._takes_over(node.domain, node.op_type):
            self._successor = node
            self._describe(node)
        owner(self._node).insert_before(self._node, node)

    def _takes_over(self, domain: str, op_type: str) -> bool:
        """Tests whether a new node is the main one: the first op of ``bngrad`` that computes Y or dX."""
        return self._successor is None and domain == DOMAIN and op_type not in _WITHOUT_DATA
