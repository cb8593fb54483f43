"""The other steps of a training graph: what computes one gradient from the values before it.

A step is cut out of the graph under test by names: it makes the tensors of one node of the original out of
tensors that the original has too. So it is the lowering of that node, or a whole gradient rule, whatever either
graph computes in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bngrad.opset.gradient_names import is_gradient_node_name
from bngrad.passes.lower import LOWERINGS

if TYPE_CHECKING:
    from collections.abc import Collection

    import onnx_ir as ir

    from bngrad.validation.common_values import CommonValues


@dataclass(frozen=True)
class Step:
    """What computes some tensors of the original graph, in the graph under test."""

    node: ir.Node
    """The node of the original that makes the tensors."""
    reads: list[str]
    """The values that the graph under test computes them from."""
    outputs: dict[int, str]
    """The names of the tensors, by their position."""
    own_nodes: list[ir.Node]
    """The nodes of ``bngrad`` ops in it, which every provider implements in its own way."""

    @property
    def name(self) -> str:
        """The node's name, or that of its first tensor."""
        return self.node.name or next(iter(self.outputs.values()))

    @property
    def values(self) -> list[str]:
        """The names of all values that it takes to check it."""
        return [*self.reads, *self.outputs.values()]


def find_steps(original: ir.Model, common: CommonValues, done: Collection[ir.Node]) -> list[Step]:
    """Returns the steps that are no sites, in the order of the original.

    Where another builder made the graph under test, these are all gradients, and all values that an op of ours
    makes; else what a lowered node makes.

    Args:
        original: The training graph as ORT's builder made it.
        common: What it shares with the graph under test.
        done: Nodes of the original that are checked in another way.
    """
    steps = []
    for node in original.graph:
        lowered = (node.domain, node.op_type) in LOWERINGS
        if node in done or (common.same_builder and not lowered):
            continue
        outputs = {i: n for i, n in common.of(node.outputs).items() if _is_gradient(node) or common.is_own(n)}
        if outputs:
            reads, own_nodes = common.frontier(outputs.values())
            steps.append(Step(node, reads, outputs, own_nodes))
    return steps


def _is_gradient(node: ir.Node) -> bool:
    return is_gradient_node_name(node.name or "")
