"""The evaluation of a state on a dataset: the mean loss, and the accuracy if there are class labels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from bngrad.training.dataset import Dataset
    from bngrad.training.trainer import Trainer


class Interrupted(Exception):  # noqa: N818 - no error
    """The user wants the run to end."""


class Evaluation(NamedTuple):
    """How good a state is."""

    loss: float
    """The mean of the losses of the batches, each weighted by its number of samples."""
    accuracy: float | None
    """The share of the labels with the highest score; None if the model has no single input of labels, or its
    scores are no output."""


def evaluate(
    trainer: Trainer, dataset: Dataset, size: int, *, drop_last: bool, stop: Callable[[], bool] = lambda: False
) -> Evaluation:
    """Evaluates the state of a trainer.

    Args:
        trainer: The trainer.
        dataset: The samples.
        size: The number of samples of a batch.
        drop_last: Whether to leave out a last batch with fewer samples.
        stop: Whether to end.

    Raises:
        InputError: See `Trainer.evaluate`.
        Interrupted: ``stop`` says so.
    """
    labels = trainer.labels[0] if len(trainer.labels) == 1 else None
    losses, samples, correct, counted = [], 0, 0, 0
    for rows, batch in dataset.batches(size, drop_last=drop_last):
        if stop():
            raise Interrupted
        outputs = trainer.evaluate(**batch)
        losses.append(float(outputs[trainer.info.loss].item()) * rows)
        samples += rows
        if labels is not None and labels.scores in outputs:
            hits, of = labels.correct(batch[labels.name], outputs[labels.scores])
            correct, counted = correct + hits, counted + of
    return Evaluation(math.fsum(losses) / samples, correct / counted if counted else None)
