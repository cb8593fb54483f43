"""Ranges of a quantized step that stay after some updates, and learned scales, which are trained from then on.

::

    is_learning = updates >= N
    range       = is_learning and there is one ? old range : that of the data
    scale       = is_learning and there is one ? learned scale : that of the range
    new scale   = is_learning ? max(update of scale, smallest) : scale
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.node_makers import NodesAfter
from bngrad.graph.nodes import owner
from bngrad.passes.quantize.quantization import SMALLEST_SCALE
from bngrad.passes.quantize.round_values import learned_scale

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bngrad.graph.fresh_names import Names
    from bngrad.graph.node_makers import NodesAtEnd

_FLOAT = ir.DataType.FLOAT


def freeze_range(names: Names, is_frozen: ir.Value | None, old: ir.Value, new: ir.Value) -> ir.Value:
    """Lets a range stay where a condition is true, unless there is none yet.

    Args:
        names: The source of names.
        is_frozen: The condition, before the nodes that compute the range; None if it is always true.
        old: The range in the state.
        new: The new range, an output of the graph.

    Returns:
        The output in its place.
    """
    producer = new.producer()
    assert producer is not None, "a range is computed"  # noqa: S101
    make = NodesAfter(producer, names, f"{old.name}/freeze")
    uses, name, graph = list(new.uses()), new.name, owner(producer)
    stays = make.op("LessOrEqual", *(make.op("Gather", old, make.int64(index)) for index in (0, 1)))
    if is_frozen is not None:
        stays = make.op("And", is_frozen, stays)
    result = make.op("Where", stays, old, new)
    result.type, result.shape = old.type, old.shape
    for node, index in uses:
        node.replace_input_with(index, result)
    graph.outputs[:] = [result if value is new else value for value in graph.outputs]
    new.name = names.fresh(f"{old.name}/of_data")
    result.name = name
    return result


def masked(names: Names, is_learning: ir.Value, learned: ir.Value) -> ir.Value:
    """Lets all nodes read a learned scale as 0, as before the first step, unless a condition is true.

    Args:
        names: The source of names.
        is_learning: The condition, before all nodes that read the scale.
        learned: The learned scale in the state.
    """
    producer = is_learning.producer()
    assert producer is not None, "the condition is computed"  # noqa: S101
    make, uses = NodesAfter(producer, names, f"{learned.name}/freeze"), list(learned.uses())
    result = make.op("Where", is_learning, learned, make.constant(0, _FLOAT))
    result.type, result.shape = learned.type, learned.shape
    for node, index in uses:
        node.replace_input_with(index, result)
    return result


class LearnedScales:
    """The learned scales of a step.

    Args:
        make: The maker of nodes.
        of_ranges: The scales of the new ranges, by the names of the learned scales; none if none is learned.
        learned: The learned scales in the state; `masked` where there is a condition.
        is_learning: The condition that they are trained; None for always.
    """

    def __init__(
        self,
        make: NodesAtEnd,
        of_ranges: Mapping[str, ir.Value],
        learned: Mapping[str, ir.Value],
        is_learning: ir.Value | None,
    ) -> None:
        self._make, self._is_learning = make, is_learning
        self.used = {name: learned_scale(make, learned[name], of_range) for name, of_range in of_ranges.items()}
        """The scales that the step rounds by."""

    def gradient(self, gradient: ir.Value) -> ir.Value:
        """Returns the gradient of a scale, which is 0 as long as the scale is not trained."""
        if self._is_learning is None:
            return gradient
        return self._make.where(self._is_learning, gradient, self._make.constant(0, _FLOAT))

    def new(self, name: str, old: ir.Value, updated: ir.Value, apply: ir.Value | None) -> ir.Value:
        """Returns the next value of a learned scale.

        Args:
            name: Its name.
            old: Its value in the state.
            updated: Its value after an update.
            apply: The condition that this call updates the weights; None if every call does.
        """
        make = self._make
        new = make.typed("Max", updated, make.constant(SMALLEST_SCALE, _FLOAT))
        new = new if apply is None else make.where(apply, new, old)
        return new if self._is_learning is None else make.where(self._is_learning, new, self.used[name])
