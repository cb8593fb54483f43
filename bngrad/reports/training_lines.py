"""The lines of `inspect` on whether a model can be trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bngrad.inspection.inspect import Inspection
    from bngrad.inspection.trainability import Trainability

MOST = 6
"""The most values, and the most commands, that are listed."""


def training_lines(inspection: Inspection) -> Iterator[str]:
    """Yields the inputs and outputs of a model, its loss, and the command to go on with, or what is refused."""
    yield f"inputs: {_some(inspection.inputs)}"
    yield f"outputs: {_some(inspection.outputs)}"
    training = inspection.training
    if training is None:
        return
    yield f"weights: {training.weights:,} with {training.parameters:,} parameters"
    if training.losses:
        yield f"loss: {loss_text(training)}"
    if training.refusals:
        yield f"step refuses it: {refusal_text(training)}"
    if training.without_gradient:
        counts = sorted(training.without_gradient.items())
        yield f"ops without a gradient: {', '.join(f'{op} ({count})' for op, count in counts)}"
    if not training.refusals:
        for index, choice in enumerate(training.losses[:MOST]):
            yield f"{'or' if index else 'to train'}: {choice.command}"


def loss_text(training: Trainability) -> str:
    """Returns which loss a model has, or can take."""
    names = [repr(choice.loss) for choice in training.losses if choice.loss is not None]
    if names:
        return (
            f"output {names[0]}"
            if training.decided
            else f"needs --loss, the name of an output: {' or '.join(names)}"
        )
    takes = [
        f"{choice.loss_fn} of {choice.prediction!r}, with {choice.target}" for choice in training.losses[:MOST]
    ]
    if training.decided:
        return f"none in the model; its last op suggests --loss-fn {takes[0]}"
    return f"none in the model; --loss-fn appends one, such as {'; or '.join(takes)}"


def refusal_text(training: Trainability) -> str:
    """Returns the first of the reasons why a model is refused, and the number of the others."""
    others = len(training.refusals) - 1
    return training.refusals[0] + (f" (and {others} more)" if others else "")


def _some(values: Sequence[object]) -> str:
    names = [str(value) for value in values[:MOST]]
    more = [f"{len(values) - MOST} more"] if len(values) > MOST else []
    return ", ".join(names + more) or "none"
