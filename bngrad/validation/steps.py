"""The steps of a training graph other than batch norms: each computes a gradient from preceding values.

A step is extracted from the graph under test by names: it computes the outputs of one node of the original from
values that both graphs have. It is therefore the lowering of that node, or a whole gradient rule.
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
    """The part of the graph under test that computes outputs of a node of the original."""

    node: ir.Node
    """The node of the original."""
    reads: list[str]
    """The names of the values that the graph under test computes the outputs from."""
    outputs: dict[int, str]
    """The names of the node's outputs that the graph under test has too, by position."""
    own_nodes: list[ir.Node]
    """The nodes of ``bngrad`` ops in the step, which depend on the implementation."""

    @property
    def name(self) -> str:
        """The node's name, or that of the first output."""
        return self.node.name or next(iter(self.outputs.values()))

    @property
    def values(self) -> list[str]:
        """The names of all values that are needed to check the step."""
        return [*self.reads, *self.outputs.values()]


def find_steps(original: ir.Model, common: CommonValues, done: Collection[ir.Node]) -> list[Step]:
    """Returns the steps of a training graph, in the order of the original.

    If the graphs are from different builders, these are all gradients and all values that an op of ``bngrad``
    produces; otherwise, the outputs of lowered nodes.

    Args:
        original: The training graph from ORT's gradient builder.
        common: The values that it has in common with the graph under test.
        done: Nodes of the original that are checked otherwise.
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
