"""What every rewriting pass does: find the nodes, refuse before anything changes, rewrite them all."""

from __future__ import annotations

import abc
from collections import Counter
from typing import TYPE_CHECKING, ClassVar

import onnx_ir as ir

from bngrad.graph.fresh_names import ConstantAxes, Names
from bngrad.graph.nodes import all_nodes, default_opset, op_nodes, raise_refusals, remove
from bngrad.io.domains import import_bngrad
from bngrad.opset.functions import DOMAIN, MIN_OPSET

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


STANDARD = "bngrad.standard"
"""The key in a model's ``meta`` for how many nodes of each op became standard ONNX only."""


class Context:
    """What the rewrites of one model share."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.names = Names(model)
        self.axes = ConstantAxes(self.names)
        self.opset = default_opset(model) or 0
        self.ours = 0
        """How many ops of ``bngrad`` were added, not counting nodes that became one in place."""
        self.replaced: list[ir.Node] = []
        """Nodes that were replaced; the pass removes them."""


def _no_outputs(node: ir.Node) -> str | None:
    return None if node.outputs else "it has no outputs; expected one at least"


def _name_apart(model: ir.Model, nodes: Sequence[ir.Node], names: Names) -> None:
    """Gives each of the nodes a unique name, which its replacement may take over."""
    users = Counter(node.name for node in all_nodes(model)) if nodes else Counter()
    for node in nodes:
        if node.name and users[node.name] > 1:
            users[node.name] -= 1
            node.name = names.fresh(node.name)


class RewritePass(ir.passes.InPlacePass, abc.ABC):
    """Replaces the nodes of one kind in a model, its subgraphs and its functions.

    A call of one of the model's functions never matches, whatever the function's name.

    Requires: `minimum` or a newer ai.onnx opset, if a node matches, and the types of values.
    Refuses, with `UnsupportedNodeError` and before it changes anything, if any of the nodes cannot be rewritten.
    Guarantees: no node matches afterwards. Every graph and function with ops of ``bngrad`` imports their domain.
    Names of nodes and of their outputs stay, except for nodes that share a
    name, which ONNX Runtime would refuse.

    Args:
        unbiased_running_var: Whether a forward batch norm updates the running variance with the unbiased variance
            of the batch, instead of the biased one of ONNX's definition.
    """

    minimum: ClassVar[int] = MIN_OPSET
    """The oldest opset that has the ops of the nodes that it makes."""

    def __init__(self, *, unbiased_running_var: bool = False) -> None:
        super().__init__()
        self.unbiased_running_var = unbiased_running_var

    @abc.abstractmethod
    def matches(self, node: ir.Node) -> bool:
        """Whether a node is one that the pass replaces."""

    @abc.abstractmethod
    def refusal(self, node: ir.Node) -> str | None:
        """Why a node that matches cannot be rewritten: what it has, and what was expected. None if it can."""

    @abc.abstractmethod
    def rewrite(self, node: ir.Node, context: Context) -> None:
        """Rewrites a node that matches and was not refused."""

    def requires(self, model: ir.Model) -> None:
        """A model with a matching node imports `minimum` or newer."""
        version = default_opset(model) or 0
        if version < self.minimum and any(self._found(model)):
            raise ir.passes.PreconditionError(
                f"the model imports ai.onnx {version}; {type(self).__name__} needs {self.minimum}"
            )

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        found = list(self._found(model))
        raise_refusals([(node, reason) for node in found if (reason := _no_outputs(node) or self.refusal(node))])
        context = Context(model)
        _name_apart(model, found, context.names)
        standard: Counter[str] = Counter(model.meta.get(STANDARD, {}))
        for node in found:
            op_type, ours = node.op_type, context.ours
            self.rewrite(node, context)
            if node.domain != DOMAIN and context.ours == ours:
                standard[op_type] += 1
        model.meta[STANDARD] = dict(standard)
        remove(context.replaced)
        if found:
            import_bngrad(model)
        return ir.passes.PassResult(model, modified=bool(found))

    def ensures(self, model: ir.Model) -> None:
        """No node matches."""
        for node in self._found(model):
            raise ir.passes.PostconditionError(f"{node.name} is still {node.op_type}")

    def _found(self, model: ir.Model) -> Iterator[ir.Node]:
        return (node for node in op_nodes(model) if self.matches(node))
