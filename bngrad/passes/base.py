"""The base class of rewriting passes: find the nodes, refuse before anything changes, rewrite them all."""

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
"""The key in a model's ``meta`` for the number of nodes of each op that became only standard ONNX."""


class Context:
    """The state that the rewrites of one model share."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.names = Names(model)
        self.axes = ConstantAxes(self.names)
        self.opset = default_opset(model) or 0
        self.bngrad_ops = 0
        """The number of ops of ``bngrad`` that were added, without nodes that became one in place."""
        self.replaced: list[ir.Node] = []
        """Nodes that were replaced; the pass removes them."""


def _no_outputs(node: ir.Node) -> str | None:
    return None if node.outputs else "it has no outputs; expected at least one"


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
    """The oldest opset that has the ops of the new nodes."""

    def __init__(self, *, unbiased_running_var: bool = False) -> None:
        super().__init__()
        self.unbiased_running_var = unbiased_running_var

    @abc.abstractmethod
    def matches(self, node: ir.Node) -> bool:
        """Returns whether the pass replaces a node."""

    @abc.abstractmethod
    def refusal(self, node: ir.Node) -> str | None:
        """Returns why a node that matches cannot be rewritten, and what was expected; None if it can."""

    @abc.abstractmethod
    def rewrite(self, node: ir.Node, context: Context) -> None:
        """Rewrites a node that matches and was not refused."""

    def requires(self, model: ir.Model) -> None:
        """A model with a matching node imports `minimum` or newer."""
        version = default_opset(model) or 0
        if version < self.minimum and any(self._matching(model)):
            raise ir.passes.PreconditionError(
                f"the model imports ai.onnx {version}; {type(self).__name__} needs {self.minimum}"
            )

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        nodes = list(self._matching(model))
        if not nodes:
            return ir.passes.PassResult(model, modified=False)
        raise_refusals([(node, reason) for node in nodes if (reason := _no_outputs(node) or self.refusal(node))])
        context = Context(model)
        _name_apart(model, nodes, context.names)
        standard: Counter[str] = Counter(model.meta.get(STANDARD, {}))
        for node in nodes:
            op_type, bngrad_ops = node.op_type, context.bngrad_ops
            self.rewrite(node, context)
            if node.domain != DOMAIN and context.bngrad_ops == bngrad_ops:
                standard[op_type] += 1
        model.meta[STANDARD] = dict(standard)
        remove(context.replaced)
        import_bngrad(model)
        return ir.passes.PassResult(model, modified=True)

    def ensures(self, model: ir.Model) -> None:
        """No node matches."""
        for node in self._matching(model):
            raise ir.passes.PostconditionError(f"{node.name} is still {node.op_type}")

    def _matching(self, model: ir.Model) -> Iterator[ir.Node]:
        return (node for node in op_nodes(model) if self.matches(node))
