"""The keys of collectives, by which the ranks of a run verify that they are at the same op."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.graph.fresh_names import free_name
from bngrad.graph.nodes import all_nodes
from bngrad.opset.functions import DOMAIN
from bngrad.opset.synchronized import COLLECTIVES

if TYPE_CHECKING:
    import onnx_ir as ir

_OP_TYPES = frozenset(function.name for function in COLLECTIVES)


def is_collective(node: ir.Node) -> bool:
    """Returns whether a node exchanges data with the other ranks."""
    return node.domain == DOMAIN and node.op_type in _OP_TYPES


class Keys:
    """Makes keys that no collective of a model has.

    Args:
        model: The model.
    """

    def __init__(self, model: ir.Model) -> None:
        self._taken = {node.attributes["key"].as_string() for node in all_nodes(model) if is_collective(node)}

    def unique(self, name: str) -> str:
        """Returns ``name``, or that with a number appended."""
        key = free_name(name, self._taken)
        self._taken.add(key)
        return key
