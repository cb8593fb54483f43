"""Compares training runs by their logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.reports.compare.comparison import Comparison, RunSummary, differing
from bngrad.reports.html.curves import smoothed
from bngrad.reports.run_records import points_of, speed_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.training.run_log import Logged


def compare_runs(files: Sequence[str], logs: Sequence[Logged]) -> Comparison:
    """Returns the comparison of runs.

    Args:
        files: The names of the logs.
        logs: The logs.
    """
    runs = [_summary(file, log) for file, log in zip(files, logs, strict=True)]
    return Comparison("train", list(files), differing([log.options for log in logs]), runs)


def _summary(file: str, log: Logged) -> RunSummary:
    steps = [record for record in log.records if "loss" in record]
    losses = points_of(steps, "loss")
    validated = [record for record in log.records if record.get("validation_loss") is not None]
    best = min(validated, key=lambda record: record["validation_loss"], default={})
    return RunSummary(
        file=file,
        steps=int(max(record["step"] for record in log.records)),
        epochs=int(max((record.get("epoch") or 0 for record in log.records), default=0)),
        loss=smoothed(losses)[-1][1] if losses else None,
        best_validation_loss=best.get("validation_loss"),
        best_epoch=best.get("epoch"),
        accuracy=best.get("accuracy"),
        seconds=max((record["seconds"] for record in log.records if record.get("seconds")), default=None),
        steps_per_second=speed_of(steps),
    )
