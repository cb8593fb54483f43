"""Output of ``bngrad train``: a line for each epoch, and the end of the run as lines or as JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from bngrad.cli.console import count_text

if TYPE_CHECKING:
    from bngrad.cli.documents import TrainDocument
    from bngrad.training.checkpoints import Position
    from bngrad.training.fit import Outcome


def epoch_line(record: dict[str, Any], epochs: int) -> str:
    """Returns the line for the record of an epoch."""
    parts = [f"epoch {record['epoch']}/{epochs}: loss {record['training_loss']:.4g}"]
    if "validation_loss" in record:
        parts.append(f"validation loss {record['validation_loss']:.4g}")
    if "accuracy" in record:
        parts.append(f"accuracy {record['accuracy']:.2%}")
    return ", ".join(parts)


def epoch_warnings(record: dict[str, Any]) -> list[str]:
    """Returns the warnings about the record of an epoch."""
    loss = record.get("validation_loss", 0.0)
    if math.isfinite(loss):
        return []
    why = "no sample of the validation data counts, or the data or the outputs of the model are not finite"
    return [f"the validation loss of epoch {record['epoch']} is {loss}, so it is not compared: {why}"]


def lines(outcome: Outcome, position: Position, options: dict[str, Any]) -> list[str]:
    """Returns the lines at the end of a run."""
    checkpoint = options["checkpoint"]
    if outcome.status == "not finite":
        kept = "" if checkpoint is None or not checkpoint.exists() else f"; {checkpoint} has an earlier state"
        return [f"stopped: {outcome.reason}{kept}"]
    if outcome.status == "interrupted":
        saved = "no checkpoint was asked for" if checkpoint is None else f"continue with --resume {checkpoint}"
        return [f"interrupted after step {position.step}: {saved}"]
    best = "" if outcome.best is None else (
        f"; lowest validation loss {position.best_loss:.4g} after epoch {position.best_epoch}"
    )  # fmt: skip
    epochs, steps = count_text(position.epoch, "epoch"), count_text(position.step, "step")
    texts = [f"{outcome.status} after {epochs}, {steps}{best}"]
    which = "last" if outcome.best is None else "best"
    if options["state_out"] is not None:
        texts.append(f"{options['state_out']}: the {which} state")
    if options["output"] is not None:
        texts.append(f"{options['output']}: the inference model with the {which} state")
    return texts


def document(outcome: Outcome, position: Position, last: dict[str, Any], options: dict[str, Any]) -> TrainDocument:
    """Returns the end of a run as a JSON document.

    Args:
        outcome: The end of the run.
        position: Where.
        last: The record of the last epoch.
        options: The options of the command.
    """
    finished = outcome.status in ("finished", "stopped early")
    return {
        "status": outcome.status,
        "reason": outcome.reason or None,
        "epochs": position.epoch,
        "steps": position.step,
        "training_loss": last.get("training_loss"),
        "validation_loss": last.get("validation_loss"),
        "accuracy": last.get("accuracy"),
        "best_epoch": position.best_epoch,
        "best_validation_loss": position.best_loss,
        "output": options["output"] if finished else None,
        "state": options["state_out"] if finished else None,
        "checkpoint": None if options["checkpoint"] is None else str(options["checkpoint"]),
    }
