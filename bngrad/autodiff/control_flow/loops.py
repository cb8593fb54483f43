"""The gradients of Scan and Loop: backpropagation through their steps, from the last to the first.

The forward loop gets scan outputs for those of its states that the gradient of a step needs. A step of the
backward loop computes the forward step again, from them. It has these states: the gradients of the forward states,
and the sums of the gradients of the values around the body.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import onnx_ir as ir

from bngrad.autodiff.control_flow.body_copy import BodyCopy, require_tensors, zeros_like
from bngrad.autodiff.control_flow.body_types import CHANGES_SHAPE
from bngrad.autodiff.control_flow.repetition import IN_ORDER
from bngrad.graph.signs import is_singular
from bngrad.graph.subgraphs import nodes_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.control_flow.repetition import Repetition
    from bngrad.autodiff.control_flow.steps import Steps
    from bngrad.autodiff.rule import Gradients


class _Flow(NamedTuple):
    """The outputs of a loop that a gradient goes through."""

    states: list[int]
    """The states with a gradient, by their number."""
    elements: list[int]
    """The scan outputs with a gradient, by the index of the output."""


def gradients_of_loop(back: Backward, loop: Repetition, kind: type[Steps]) -> Gradients:
    """Returns the gradients of a Loop or Scan: those of its inputs, and of the values that its body reads.

    Args:
        back: The node.
        loop: The same.
        kind: The kind of the backward loop.
    """
    count = len(back.node.inputs)
    captured = [value for index, value in enumerate(back.captured, count) if back.needs(index)]
    elements = [index for index in loop.element_inputs if back.needs(index)]
    flow = _flow(back, loop)
    require_tensors(back, [*(loop.body.inputs[loop.state_inputs[number]] for number in flow.states), *captured])
    back.unbounded |= any(map(is_singular, nodes_of(loop.body)))
    copy = BodyCopy(back, loop.body)
    inputs = list(copy.graph.inputs)
    steps = kind(back, loop, copy)
    seeds, states = _seeds(back, loop, flow, copy, steps)
    wrt = [
        *(inputs[loop.state_inputs[number]] for number in flow.states),
        *(inputs[i] for i in elements),
        *captured,
    ]
    of_step = dict(zip(wrt, back.bodies.in_body(copy.graph, seeds, wrt, unbounded=back.unbounded), strict=True))

    following: list[ir.Value] = []
    for number, state in zip(flow.states, states, strict=True):
        gradient = of_step[inputs[loop.state_inputs[number]]]
        following.append(zeros_like(copy.make, state) if gradient is None else gradient)
    sums = {value: gradient for value in captured if (gradient := of_step[value]) is not None}
    for value, gradient in sums.items():
        total = steps.state(zeros_like(back, value), f"sum_{value.name}", value)
        following.append(copy.make.typed("Add", total, gradient))
    parts = {index: gradient for index in elements if (gradient := of_step[inputs[index]]) is not None}
    if not following and not parts:
        copy.discard()
        return [None] * (count + len(back.captured))
    copy.set_outputs([*following, *parts.values()])
    _feed_forward_values(back, loop, inputs, steps)
    results = iter(steps.run(len(following), [loop.slices_of_input(index) for index in parts]))
    by_input = {loop.state_inputs[number]: next(results) for number in flow.states}
    by_value = {value: next(results) for value in sums}
    by_input |= {index: next(results) for index in parts}
    return [
        *(by_input.get(index) if back.needs(index) else None for index in range(count)),
        *(by_value.get(value) for value in back.captured),
    ]


def _flow(back: Backward, loop: Repetition) -> _Flow:
    """Returns the outputs of the body through which a gradient goes, in any of the steps."""
    moving = back.bodies.moving_in(loop.node)
    inputs = [loop.body.inputs[index] for index in loop.state_inputs]
    with_dY = [index for index, dY in enumerate(back.all_dY) if dY is not None]
    states = {index for index in with_dY if index < loop.states and inputs[index] in moving}
    elements = [index for index in with_dY if index >= loop.states and loop.result(index) in moving]
    while True:
        reached = back.bodies.reaching([loop.result(index) for index in (*states, *elements)], moving)
        new = {number for number, value in enumerate(inputs) if value in reached} - states
        if not new:
            return _Flow(sorted(states), elements)
        states |= new


def _seeds(
    back: Backward, loop: Repetition, flow: _Flow, copy: BodyCopy, steps: Steps
) -> tuple[dict[ir.Value, ir.Value], list[ir.Value]]:
    """Returns the gradients of the outputs of a step, by output, and the states among them."""
    seeds, states = {}, []
    for number in flow.states:
        dY = back.all_dY[number] if number < len(back.all_dY) else None
        before, final = copy.graph.inputs[loop.state_inputs[number]], back.y(number)
        final.type = final.type or before.type  # none if the node leaves it out
        state = steps.state(zeros_like(back, final) if dY is None else dY, f"state_{number}", before)
        seeds[copy.result(loop.lead + number)] = state
        states.append(state)
    for index in flow.elements:
        dY, result = back.all_dY[index], copy.result(loop.lead + index)
        assert dY is not None, "it has a gradient"  # noqa: S101
        seeds[result] = copy.input(f"element_{index}", result)
        steps.feed(seeds[result], dY, loop.slices_of_output(index))
    return seeds, states


def _feed_forward_values(back: Backward, loop: Repetition, inputs: Sequence[ir.Value], steps: Steps) -> None:
    """Gives the steps those inputs of the forward step that they still read; keeps its states for that."""
    for number, index in enumerate(loop.state_inputs):
        if inputs[index].uses():
            steps.feed(inputs[index], _kept(back, loop, steps, number), IN_ORDER)
    for index in loop.element_inputs:
        if inputs[index].uses():
            steps.feed(inputs[index], back.x(index), loop.slices_of_input(index))
    steps.feed_counters(inputs[: loop.first])


def _kept(back: Backward, loop: Repetition, steps: Steps, number: int) -> ir.Value:
    """Adds a scan output to the forward loop: a state before each step.

    Raises:
        NoGradientError: It is no tensor, or its shape changes.
    """
    index = loop.state_inputs[number]
    state = loop.body.inputs[index]
    if not isinstance(state.type, ir.TensorType):
        back.refuse(f"its state {state.name!r}, which its gradient needs, is no tensor; expected a tensor")
    if state.meta.get(CHANGES_SHAPE):
        back.refuse(
            f"its state {state.name!r}, which its gradient needs, changes its shape from step to step; expected "
            "the same shape"
        )
    return steps.keep(state, f"state_{number}")
