"""The checkpoints of a training run: the last one, and the one with the lowest validation loss beside it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bngrad.errors import InputError
from bngrad.io.writing import check_output
from bngrad.training.step_files import read_state_of_step, write_state

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from bngrad.training.step_info import StepInfo
    from bngrad.training.trainer import Trainer

    Array = NDArray[Any]

_MAX_COUNT = 2**53


@dataclass
class Position:
    """Where a training run is."""

    epoch: int = 0
    """The number of complete epochs."""
    step: int = 0
    """The number of batches that were taken."""
    batch: int = 0
    """Of these, those of the current epoch."""
    samples: int = 0
    """The number of samples of these whose loss is finite."""
    loss_sum: float = 0.0
    """The sum of the losses of these samples."""
    best_epoch: int | None = None
    """The epoch with the lowest validation loss, 1 for the first."""
    best_loss: float | None = None

    def is_sound(self) -> bool:
        """Tests whether the values have the types and ranges of a run; those of a file may have others."""
        counts = [self.epoch, self.step, self.batch, self.samples]
        counts += [] if self.best_epoch is None else [self.best_epoch]
        losses = [self.loss_sum] + ([] if self.best_loss is None else [self.best_loss])
        return (
            all(type(count) is int and 0 <= count < _MAX_COUNT for count in counts)
            and all(type(loss) in (int, float) and math.isfinite(loss) for loss in losses)
            and (self.best_epoch is None) == (self.best_loss is None)
        )


class Checkpoints:
    """Writes the checkpoints of a run.

    Args:
        path: The file of the last one; None for no checkpoints.
        info: The metadata of the step.
        options: The options of the run, which the files are to hold; anything that JSON can hold.

    Raises:
        InputError: The files cannot be written.
    """

    def __init__(self, path: Path | None, info: StepInfo, options: Mapping[str, Any]) -> None:
        self._path = None if path is None else check_output(path)
        self._info, self._options = info, dict(options)
        self._best_epoch: int | None = None
        """The epoch of the best checkpoint, once it is written."""
        if self._path is not None:
            check_output(best_path(self._path))

    def save(self, state: Mapping[str, Array], best: Mapping[str, Array] | None, position: Position) -> None:
        """Writes the last checkpoint, and then the best one if it changed.

        In this order the best checkpoint is never ahead of the last one, whatever ends the process in between.

        Raises:
            InputError: A file cannot be written.
        """
        if self._path is None:
            return
        notes = {"options": self._options, "position": asdict(position)}
        write_state(self._path, state, self._info, notes=notes)
        if best is not None and self._best_epoch != position.best_epoch:
            write_state(best_path(self._path), best, self._info, notes=notes)
            self._best_epoch = position.best_epoch


def best_path(path: Path) -> Path:
    """The file of the best checkpoint beside that of the last one."""
    return path.with_suffix(f".best{path.suffix}")


@dataclass(frozen=True)
class Resumed:
    """The state, position and options that a run resumes from."""

    state: dict[str, Array]
    position: Position
    options: dict[str, Any]
    best: dict[str, Array] | None
    """The state of the epoch with the lowest validation loss."""
    remarks: list[str]
    """Warnings about the training step that wrote the checkpoint."""


def resume(path: str | os.PathLike[str], trainer: Trainer, *, anyway: bool = False) -> Resumed:
    """Reads a checkpoint of a run, and the best one beside it, on rank 0 of the trainer's.

    Args:
        path: The checkpoint.
        trainer: The trainer.
        anyway: Whether the checkpoint may be of another training step, if its tensors fit.

    Raises:
        InputError: A file cannot be read, is of another training step, or is not a checkpoint of a run.
        DistributedError: See `Trainer`.
    """
    ranks = trainer.ranks
    resumed: Resumed | None = None

    def read() -> dict[str, Any]:
        nonlocal resumed
        resumed = _resumed(path, trainer, anyway=anyway)
        has_best = resumed.best is not None
        return {
            "position": asdict(resumed.position),
            "options": resumed.options,
            "best": has_best,
            "remarks": resumed.remarks,
        }

    shared = ranks.on_first("resume", read)
    state = trainer.state_dict() if resumed is None else resumed.state
    best = state if resumed is None or resumed.best is None else resumed.best
    return Resumed(
        ranks.from_first("resumed state", state),
        Position(**shared["position"]),
        shared["options"],
        ranks.from_first("best state", best) if shared["best"] else None,
        shared["remarks"],
    )


def _resumed(path: str | os.PathLike[str], trainer: Trainer, *, anyway: bool) -> Resumed:
    state, position, options, remarks = _read(Path(path), trainer, anyway=anyway)
    if position.best_epoch is None:
        return Resumed(state, position, options, None, remarks)
    if position.best_epoch == position.epoch and not position.batch:
        return Resumed(state, position, options, state, remarks)
    beside = best_path(Path(path))
    if not beside.exists():
        raise InputError(
            f"{beside}, the state with the lowest validation loss, is missing; expected it beside {path}, as "
            "bngrad train wrote it"
        )
    best, of_best, _, _ = _read(beside, trainer, anyway=anyway)
    if of_best.best_epoch != position.best_epoch or of_best.best_loss != position.best_loss:
        raise InputError(
            f"{beside} is the state after epoch {of_best.best_epoch}, but the best epoch of {path} is "
            f"{position.best_epoch}; expected the checkpoints of one run"
        )
    return Resumed(state, position, options, best, remarks)


def _read(
    path: Path, trainer: Trainer, *, anyway: bool
) -> tuple[dict[str, Array], Position, dict[str, Any], list[str]]:
    state, extra, remarks = read_state_of_step(path, trainer.info, anyway=anyway)
    try:
        notes = extra["notes"]
        position = Position(**notes["position"])
        if not position.is_sound():
            raise ValueError  # noqa: TRY301 - one handler for whatever is wrong
        return state, position, dict(notes["options"]), remarks
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{path} is a state, but not a checkpoint of bngrad train") from None
