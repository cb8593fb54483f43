"""The part of a forward graph that a gradient goes through, by the edges of our own gradient rules.

Only the main graph counts: ORT's gradient builder does not enter the bodies of If, Loop and Scan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bngrad.autodiff.dependence import moving_values
from bngrad.autodiff.edges import reads, smooth_inputs
from bngrad.autodiff.loss_and_wrt import reaching_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir


class Step(NamedTuple):
    """A node that a gradient goes through."""

    node: ir.Node
    inputs: tuple[tuple[int, ir.Value], ...]
    """The inputs that the gradient goes to: index and value."""


class GradientPath(NamedTuple):
    """The values and nodes between a loss and the values that it is differentiated with respect to."""

    loss: ir.Value
    reaching: set[ir.Value]
    """The values that the loss depends on in a differentiable way."""
    moving: set[ir.Value]
    """The values that change with those that the loss is differentiated with respect to."""
    steps: list[Step]
    """The nodes that the gradient goes through, in the order of the graph."""


def gradient_path(graph: ir.Graph, loss: ir.Value, wrt: Sequence[ir.Value]) -> GradientPath:
    """Returns the path of a gradient.

    Args:
        graph: A main graph in topological order, with types.
        loss: A value of it.
        wrt: The inputs to differentiate with respect to.
    """
    reaching, moving = reaching_values(loss), moving_values(graph, wrt)
    steps = []
    for node in graph:
        if reaching.isdisjoint(node.outputs):
            continue
        inputs = tuple((index, value) for index, value in smooth_inputs(node) if value in moving)
        if inputs or not moving.isdisjoint(reads(node)):
            steps.append(Step(node, inputs))
    return GradientPath(loss, reaching, moving, steps)
