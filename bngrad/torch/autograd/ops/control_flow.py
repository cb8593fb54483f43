"""If, Loop, Scan and SequenceMap, which run their bodies."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bngrad.torch.autograd.table import op

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.torch.autograd.table import Body, Value


@op("If")
def if_(condition: Tensor, *, then_branch: Body, else_branch: Body) -> tuple[Value, ...]:
    """The results of one branch."""
    return tuple((then_branch if bool(condition) else else_branch)())


@op("Loop")
def loop(
    limit: Tensor | None = None, condition: Tensor | None = None, *states: Value, body: Body
) -> tuple[Value, ...]:
    """The last states, and what the steps return beside them."""
    parts: list[list[Tensor]] = [[] for _ in body.outputs[1 + len(states) :]]
    goes_on = condition is None or bool(condition)
    for step in count():
        if not goes_on or (limit is not None and step >= int(limit)):
            break
        condition, *results = body(torch.tensor(step), torch.tensor(True), *states)
        goes_on, states = bool(condition), tuple(results[: len(states)])
        for part, element in zip(parts, results[len(states) :], strict=True):
            part.append(element)
    return (*states, *_stacked(parts, [0] * len(parts), body))


@op("Scan", since=9)
def scan(
    *inputs: Tensor,
    body: Body,
    num_scan_inputs: int,
    scan_input_axes: Sequence[int] | None = None,
    scan_input_directions: Sequence[int] | None = None,
    scan_output_axes: Sequence[int] | None = None,
    scan_output_directions: Sequence[int] | None = None,
) -> tuple[Value, ...]:
    """The last states, and what the steps return beside them, in either direction."""
    states: Sequence[Value] = inputs[:-num_scan_inputs]
    elements = [
        sequence.movedim(axis, 0).flip(0) if backward else sequence.movedim(axis, 0)
        for sequence, axis, backward in zip(
            inputs[-num_scan_inputs:],
            scan_input_axes or [0] * num_scan_inputs,
            scan_input_directions or [0] * num_scan_inputs,
            strict=True,
        )
    ]
    parts: list[list[Tensor]] = [[] for _ in body.outputs[len(states) :]]
    for step in zip(*elements, strict=True):
        results = body(*states, *step)
        states = results[: len(states)]
        for part, element in zip(parts, results[len(states) :], strict=True):
            part.append(element)
    directions = scan_output_directions or [0] * len(parts)
    ordered = [part[::-1] if backward else part for part, backward in zip(parts, directions, strict=True)]
    return (*states, *_stacked(ordered, scan_output_axes or [0] * len(parts), body))


@op("SequenceMap")
def sequence_map(sequence: list[Tensor], *others: Value, body: Body) -> tuple[list[Tensor], ...]:
    """The results of the body for each element of the sequences, beside tensors."""
    results = [
        body(element, *(other[index] if isinstance(other, list) else other for other in others))
        for index, element in enumerate(sequence)
    ]
    return tuple([result[index] for result in results] for index in range(len(body.outputs)))


def _stacked(parts: Sequence[Sequence[Tensor]], axes: Sequence[int], body: Body) -> list[Tensor]:
    """Stacks the elements of sequences, which are the last outputs of a body."""
    first = len(body.outputs) - len(parts)
    return [
        torch.stack(list(part), axis) if part else body.empty(first + index).unsqueeze(axis).narrow(axis, 0, 0)
        for index, (part, axis) in enumerate(zip(parts, axes, strict=True))
    ]
