"""The evaluation of a state on a dataset: the mean loss, and the accuracy if there are class labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from bngrad.training.dataset import Dataset
    from bngrad.training.trainer import Trainer


class Interrupted(Exception):  # noqa: N818 - no error
    """The user wants the run to end."""


class Evaluation(NamedTuple):
    """How good a state is."""

    loss: float
    """The loss of all samples, see `LossOfBatches`; NaN also if none of them counts."""
    accuracy: float | None
    """The share of the labels with the highest score; None if the model has no single input of labels, or its
    scores are no output."""


def evaluate(
    trainer: Trainer, dataset: Dataset, size: int, *, drop_last: bool, stop: Callable[[], bool] = lambda: False
) -> Evaluation:
    """Evaluates the state of a trainer; each of its ranks takes some of the batches.

    The result is the same on all ranks, and depends on the samples and the size of the batches alone.

    Args:
        trainer: The trainer.
        dataset: The samples.
        size: The number of samples of a batch.
        drop_last: Whether to leave out a last batch with fewer samples.
        stop: Whether to end.

    Raises:
        InputError: See `Trainer.evaluate`.
        DistributedError: See `Trainer`.
        Interrupted: ``stop`` says so on some rank.
    """
    ranks, loss = trainer.ranks, trainer.loss_of_batches
    batches = dataset.batches(size, start=ranks.rank, every=ranks.size, drop_last=drop_last)
    results = np.zeros((dataset.count(size, drop_last=drop_last), 3 + loss.size))
    stopped = False
    with ranks.together("validation"):
        for number, (rows, batch) in enumerate(batches):
            if stopped := stop():
                break
            outputs, parts = trainer.evaluate_parts(**batch)
            results[ranks.rank + number * ranks.size] = rows, *trainer.labels.correct(batch, outputs), *parts
    if ranks.any("stop", stopped):
        raise Interrupted
    whole = ranks.arrays("validation", results).sum(axis=0)  # a row is of one rank, and else 0
    _, correct, counted = (float(count) for count in whole[:, :3].sum(axis=0))
    return Evaluation(loss.total(whole[:, 3:], whole[:, 0]), correct / counted if counted else None)
