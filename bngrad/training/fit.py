"""The epochs of a training run, with validation, early stopping and checkpoints.

A run is a function of its options, its state and its position, which a checkpoint has: a resumed run is
bit-identical to one that was not interrupted.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from bngrad.errors import TrainingError, warn
from bngrad.training.data_inputs import not_finite
from bngrad.training.dataset import permutation
from bngrad.training.metrics import Evaluation, Interrupted, evaluate
from bngrad.training.prefetch import sent_ahead
from bngrad.training.run_clock import RunClock
from bngrad.training.step_errors import require_finite_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from bngrad.training.checkpoints import Checkpoints, Position
    from bngrad.training.dataset import Dataset
    from bngrad.training.run_log import RunLog
    from bngrad.training.trainer import Trainer

    Array = NDArray[Any]

Status = Literal["finished", "stopped early", "interrupted", "not finite"]


@dataclass(frozen=True)
class Plan:
    """The options of a run."""

    epochs: int
    batch_size: int
    """The number of samples of a batch, which the ranks share."""
    seed: int = 0
    drop_last: bool = False
    """True to leave out the last batch of an epoch if it has fewer samples."""
    patience: int | None = None
    """The number of epochs without a lower validation loss after which the run stops."""
    checkpoint_every: int | None = None
    """The number of steps between checkpoints, in addition to those after epochs."""
    skip_not_finite: bool = False
    """True to skip a batch whose loss is not finite, instead of ending the run."""


@dataclass(frozen=True)
class Reports:
    """The callbacks of a run."""

    log: RunLog
    step: Callable[[dict[str, Any], float], None] = lambda _record, _fraction: None
    """Takes the record of a step, and the complete fraction of the run."""
    epoch: Callable[[dict[str, Any]], None] = lambda _record: None
    """Takes the record of an epoch."""
    warning: Callable[[str], None] = lambda line: warn([line])
    """Takes a warning about the validation loss."""
    stop: Callable[[], bool] = lambda: False
    """Returns True if the user wants the run to end."""


class Outcome(NamedTuple):
    """The result of a run."""

    status: Status
    reason: str
    """The reason why it could not continue; empty if it could."""
    best: Mapping[str, Array] | None
    """The state with the lowest validation loss; None without a validation."""


class Fit:
    """A training run.

    Args:
        trainer: The trainer, with the state of the position.
        plan: The options.
        training: The samples to train on.
        validation: The samples to evaluate after each epoch; None for no evaluation.
        checkpoints: Where checkpoints go.
        position: Where the run is; it is changed.
        best: The state with the lowest validation loss up to there.
    """

    def __init__(
        self,
        trainer: Trainer,
        plan: Plan,
        training: Dataset,
        validation: Dataset | None,
        checkpoints: Checkpoints,
        position: Position,
        best: Mapping[str, Array] | None = None,
    ) -> None:
        self._trainer, self._plan = trainer, plan
        self._training, self._validation = training, validation
        self._checkpoints, self._position, self._best = checkpoints, position, best
        self._batches = training.count(plan.batch_size, drop_last=plan.drop_last)

    @property
    def samples(self) -> int:
        """The number of samples that it trains on."""
        return len(self._training)

    def run(self, reports: Reports) -> Outcome:
        """Runs the remaining epochs.

        Raises:
            InputError: The data do not fit, or a file cannot be written. Checkpoints are as they were.
        """
        status: Status
        with self._trainer.ranks.alone():
            try:
                try:
                    status = self._epochs(reports)
                except Interrupted:
                    status = "interrupted"
                    self._save()
            except TrainingError as error:
                return Outcome("not finite", str(error), self._best)
            return Outcome(status, "", self._best)

    def _epochs(self, reports: Reports) -> Status:
        position, patience = self._position, self._plan.patience
        clock = RunClock(reports.log.seconds)
        while position.epoch < self._plan.epochs:
            since_best = 0 if position.best_epoch is None else position.epoch - position.best_epoch
            if patience is not None and since_best >= patience:
                return "stopped early"
            self._train(reports, clock)
            validation = self._validate(reports)
            self._end_epoch(reports, validation, clock)
        return "finished"

    def _train(self, reports: Reports, clock: RunClock) -> None:
        """Takes the remaining batches of the current epoch."""
        plan, position, trainer = self._plan, self._position, self._trainer
        ranks = trainer.ranks
        order = permutation(len(self._training), plan.seed, position.epoch + 1)
        batches = self._training.batches(
            plan.batch_size,
            order,
            start=position.batch,
            part=ranks.rank,
            parts=ranks.size,
            drop_last=plan.drop_last,
        )
        for rows, batch in sent_ahead(trainer.device, batches, send=not trainer.cuda_graph):
            if ranks.any("stop", reports.stop()):
                raise Interrupted
            rate = trainer.learning_rate
            loss = self._step(batch)
            position.step, position.batch = position.step + 1, position.batch + 1
            if math.isfinite(loss):
                position.samples, position.loss_sum = position.samples + rows, position.loss_sum + loss * rows
            seconds = clock.seconds
            epoch = position.epoch + 1
            norm = trainer.gradient_norm if math.isfinite(loss) else None
            numbers = {"loss": loss, "learning_rate": rate} | ({} if norm is None else {"gradient_norm": norm})
            reports.log.add(step=position.step, epoch=epoch, **numbers, seconds=seconds)
            done = (position.epoch + position.batch / self._batches) / plan.epochs
            with clock.paused():
                reports.step(reports.log.records[-1], done)
                if plan.checkpoint_every is not None and position.step % plan.checkpoint_every == 0:
                    self._save()

    def _step(self, batch: Mapping[str, Array]) -> float:
        try:
            return self._trainer.step(**batch)
        except TrainingError:
            if not self._plan.skip_not_finite or not_finite(self._trainer.state_dict()):
                raise
            return math.nan

    def _validate(self, reports: Reports) -> Evaluation | None:
        if self._validation is None:
            return None
        plan = self._plan
        return evaluate(
            self._trainer,
            self._validation,
            -(-plan.batch_size // self._trainer.ranks.size),
            drop_last=self._validation.batch_size is not None,  # every sample counts, if the step takes it
            stop=reports.stop,
            warning=reports.warning,
        )

    def _end_epoch(self, reports: Reports, validation: Evaluation | None, clock: RunClock) -> None:
        position = self._position
        if not position.samples:
            raise TrainingError(f"no batch of epoch {position.epoch + 1} has a finite loss")
        record: dict[str, Any] = {"step": position.step, "epoch": position.epoch + 1}
        record["training_loss"] = position.loss_sum / position.samples
        position.epoch, position.batch = position.epoch + 1, 0
        position.samples, position.loss_sum = 0, 0.0
        if validation is not None:
            record["validation_loss"] = validation.loss
            if validation.accuracy is not None:
                record["accuracy"] = validation.accuracy
            if -math.inf < validation.loss < (math.inf if position.best_loss is None else position.best_loss):
                position.best_epoch, position.best_loss = position.epoch, validation.loss
                self._best = self._trainer.state_dict()
        reports.log.add(**record, seconds=clock.seconds)
        with clock.paused():
            self._save()
            reports.epoch(record)

    def _save(self) -> None:
        """Writes a checkpoint.

        Raises:
            TrainingError: The state is not finite; the checkpoints stay.
            InputError: A file cannot be written.
            DistributedError: The ranks have different states.
        """
        ranks = self._trainer.ranks
        state = self._trainer.state_dict()
        require_finite_state(state, f"that after step {self._position.step}")
        if ranks.size > 1:
            ranks.require_same("state", {"the hash of the state": _hash_of(state)}, "the same kind of processor")
        ranks.on_first("checkpoint", lambda: self._checkpoints.save(state, self._best, self._position))


def _hash_of(state: Mapping[str, Array]) -> str:
    digest = hashlib.sha256()
    for array in state.values():
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]
