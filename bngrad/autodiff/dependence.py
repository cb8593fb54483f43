"""Dependence between values in a differentiable way, also through the bodies of If, Loop and Scan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.autodiff.control_flow.branches import branches_of
from bngrad.autodiff.control_flow.repetition import repetition
from bngrad.autodiff.edges import can_have_gradient, reads

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import onnx_ir as ir


def moving_values(graph: ir.Graph, wrt: Iterable[ir.Value]) -> set[ir.Value]:
    """Returns the values that depend on ``wrt`` in a differentiable way, according to the gradient rules.

    Args:
        graph: The main graph, or a body.
        wrt: Values of it, or of the graphs around it.
    """
    moving = set(wrt)
    for node in graph:
        if any(value in moving for value in reads(node)):
            moving.update(filter(can_have_gradient, _moving_outputs(node, moving)))
    return moving


def moving_in_body(node: ir.Node, moving: set[ir.Value]) -> set[ir.Value]:
    """Returns the values that depend on others in the body of a Loop or Scan, after any number of steps.

    Args:
        node: The Loop or Scan.
        moving: The values that depend on them around it.
    """
    loop = repetition(node)
    assert loop is not None, "the node is one of the two"  # noqa: S101
    inputs = loop.body.inputs
    pairs = zip(node.inputs[loop.first :], inputs[loop.first :], strict=True)
    start = {inner for outer, inner in pairs if outer in moving and can_have_gradient(inner)}
    while True:
        inside = moving_values(loop.body, moving | start)
        reached = {inputs[place] for index, place in enumerate(loop.state_inputs) if loop.result(index) in inside}
        if reached <= start:
            return inside
        start |= reached


def reaching(outputs: Iterable[ir.Value], moving: set[ir.Value]) -> set[ir.Value]:
    """Returns the values among some that outputs of the same graph depend on in a differentiable way."""
    seen = moving.intersection(outputs)
    waiting = list(seen)
    while waiting:
        node = waiting.pop().producer()
        new = set() if node is None else moving.intersection(reads(node)) - seen
        seen |= new
        waiting += new
    return seen


def _moving_outputs(node: ir.Node, moving: set[ir.Value]) -> Iterator[ir.Value]:
    loop, branches = repetition(node), branches_of(node)
    if loop is not None:
        inside = moving_in_body(node, moving)
        # Without any step, the states are the first ones.
        states = [loop.body.inputs[index] for index in loop.state_inputs]
        results = [*states, *(loop.result(index) for index in loop.scan_outputs)]
        yield from (value for value, result in zip(node.outputs, results, strict=False) if result in inside)
    elif branches is not None:
        for body in branches:
            inside = moving_values(body, moving)
            yield from (
                value for value, result in zip(node.outputs, body.outputs, strict=True) if result in inside
            )
    else:
        yield from node.outputs
