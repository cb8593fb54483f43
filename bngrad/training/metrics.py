"""The evaluation of a state on a dataset: the mean loss, and the accuracy if there are class labels."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from bngrad.errors import InputError, warn
from bngrad.training.dataset import permutation

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from bngrad.training.dataset import Dataset
    from bngrad.training.label_checks import LabelChecks
    from bngrad.training.loss_of_batches import LossOfBatches
    from bngrad.training.ranks import Ranks

_TRIES = 3
"""The number of batches by which the kind of a loss of several batches is decided."""


class Interrupted(Exception):  # noqa: N818 - no error
    """The user wants the run to end."""


class Evaluated(Protocol):
    """A state that is evaluated, of a trainer or in a model."""

    @property
    def ranks(self) -> Ranks:
        """The ranks that share the batches."""

    @property
    def labels(self) -> LabelChecks:
        """The class labels among the data."""

    @property
    def loss_of_batches(self) -> LossOfBatches:
        """The loss of several batches."""

    def evaluate_parts(self, /, **data: Any) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:  # noqa: ANN401
        """Returns the outputs for a batch, and its part in the loss of several."""


class Evaluation(NamedTuple):
    """The loss and accuracy of a state."""

    loss: float
    """The loss of all samples, see `LossOfBatches`; NaN also if none of them counts."""
    accuracy: float | None
    """The share of the labels with the highest score; None if the model has no single input of labels, or its
    scores are not an output."""


def evaluate(
    trainer: Evaluated,
    dataset: Dataset,
    size: int,
    *,
    drop_last: bool,
    stop: Callable[[], bool] = lambda: False,
    warning: Callable[[str], None] = lambda line: warn([line]),
) -> Evaluation:
    """Evaluates a state; each of its ranks takes some of the batches.

    The result is the same on all ranks, and depends only on the samples and the size of the batches.

    Args:
        trainer: The trainer, or what else has a state.
        dataset: The samples.
        size: The number of samples of a batch.
        drop_last: Whether to leave out a last batch with fewer samples.
        stop: Returns True to end the evaluation.
        warning: Takes a line, the first time, if the loss is not that of all samples at once.

    Raises:
        InputError: See `Trainer.evaluate`.
        DistributedError: See `Trainer`.
        Interrupted: ``stop`` returns True on some rank.
    """
    ranks, loss = trainer.ranks, trainer.loss_of_batches
    if loss.averaged is None:
        decided = ranks.on_first("validation loss", lambda: _decide(trainer, dataset, size))
        loss.averaged = decided["averaged"]
        if decided["reason"] is not None and ranks.is_first:
            warning(f"the validation loss is the average of batches weighted by samples: {decided['reason']}")
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


def _decide(trainer: Evaluated, dataset: Dataset, size: int) -> dict[str, Any]:
    """Decides whether the loss of several batches is an average; the reason if it is not that of all samples."""
    loss = trainer.loss_of_batches
    third = max(min(size, len(dataset)) // 3, 1)
    rows = np.array([3 * third, 2 * third, third])
    reason = loss.obstacle
    loss.averaged = reason is not None
    if dataset.batch_size is None and len(dataset) >= rows[0]:
        tries = []
        with contextlib.suppress(InputError):  # a model that needs more samples; wrong data are refused later
            for number in range(
                _TRIES
            ):  # a part without a sample that counts would hide what depends on the others
                order = permutation(len(dataset), number, 0)
                # Some samples, two thirds of them, and the others: parts of one size would hide a wrong weight.
                pieces = [
                    next(dataset.batches(int(n), order, start=k)) for n, k in zip(rows, (0, 0, 2), strict=True)
                ]
                tries.append(np.stack([trainer.evaluate_parts(**piece)[1] for _, piece in pieces]))
        reason = loss.decide(tries, rows)
    return {"averaged": loss.averaged, "reason": reason}
