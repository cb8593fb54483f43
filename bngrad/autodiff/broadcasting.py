"""The gradients of an op that broadcasts its inputs against each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.graph.broadcasting import sum_to

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx_ir as ir

    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients


def for_each_input(back: Backward, flow: Callable[[int], ir.Value]) -> Gradients:
    """Returns the gradients of the inputs of an op that broadcasts all of them against each other.

    Args:
        back: The node.
        flow: Makes the gradient with respect to an input, given its index, in the output's shape; called for the
            inputs that need one.
    """
    inputs = [back.x(index) for index in range(len(back.node.inputs))]
    return [
        sum_to(back, flow(index), x, back.y(), others=inputs[:index] + inputs[index + 1 :])
        if back.needs(index)
        else None
        for index, x in enumerate(inputs)
    ]
