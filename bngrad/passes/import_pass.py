"""What every import pass does: find the nodes of a dialect, refuse before anything changes, rewrite them all."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.passes.constants import ConstantAxes, Names
from bngrad.passes.nodes import all_nodes, default_opset, raise_refusals, remove

if TYPE_CHECKING:
    from collections.abc import Iterator


class Context:
    """What rewrites in one model share."""

    def __init__(self, model: ir.Model) -> None:
        self.names = Names(model)
        self.axes = ConstantAxes(self.names)
        self.opset = default_opset(model) or 0
        self.replaced: list[ir.Node] = []
        """Nodes that others have taken the place of; the pass removes them."""


class ImportPass(ir.passes.InPlacePass, abc.ABC):
    """Rewrites the batch norms of one dialect in a model, its subgraphs and its functions.

    Refuses, with `UnsupportedNodeError` and before it changes anything, if any of them cannot be rewritten.
    Guarantees: none is left; names of nodes and of their outputs are as before.
    """

    @abc.abstractmethod
    def matches(self, node: ir.Node) -> bool:
        """Whether a node is one of the dialect's batch norms."""

    @abc.abstractmethod
    def refusal(self, node: ir.Node) -> str | None:
        """Why a node that matches cannot be rewritten: what it has, and what was expected. None if it can."""

    @abc.abstractmethod
    def rewrite(self, node: ir.Node, context: Context) -> None:
        """Rewrites a node that matches and was not refused."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        found = list(self._found(model))
        raise_refusals([(node, reason) for node in found if (reason := self.refusal(node))])
        context = Context(model)
        for node in found:
            self.rewrite(node, context)
        remove(context.replaced)
        return ir.passes.PassResult(model, modified=bool(found))

    def ensures(self, model: ir.Model) -> None:
        """No batch norm of the dialect is left."""
        for node in self._found(model):
            raise ir.passes.PostconditionError(f"{node.name} is still {node.op_type}")

    def _found(self, model: ir.Model) -> Iterator[ir.Node]:
        return (node for node in all_nodes(model) if self.matches(node))
