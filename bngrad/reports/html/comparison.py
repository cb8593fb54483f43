"""Writes a comparison as HTML."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from bngrad import __version__
from bngrad.reports.compare.changes import FACTOR, LEAST
from bngrad.reports.html.curves import Picture, Series, curves, smoothed
from bngrad.reports.html.page import duration_text, number_text, write_page
from bngrad.reports.html.table import Column, Table
from bngrad.reports.run_records import points_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bngrad.reports.compare.comparison import Change, Comparison, RunSummary
    from bngrad.reports.html.curves import Point
    from bngrad.training.run_log import Logged


_FEW = 3
"""The most runs whose losses are drawn unsmoothed, too."""

_RUN_COLUMNS = [
    Column("run", "name"),
    *(Column(label, "number") for label in ("steps", "epochs", "mean loss", "lowest validation loss", "epoch")),
    *(Column(label, "number") for label in ("accuracy there", "time", "steps a second")),
]


def write_html(comparison: Comparison, logs: Sequence[Logged], path: Path) -> None:
    """Writes a comparison as one HTML page.

    Args:
        comparison: The comparison.
        logs: The logs of training runs; empty for reports.
        path: The file to write.

    Raises:
        InputError: The file cannot be written.
    """
    runs = comparison.runs
    validated = [run for run in runs if run.best_validation_loss is not None]
    write_page(
        path,
        "comparison",
        comparison=comparison,
        version=__version__,
        factor=f"{FACTOR:g}",
        least=f"{LEAST:g}",
        best=min(validated, key=lambda run: run.best_validation_loss or 0.0, default=None),
        states=Counter(change.state for change in comparison.changes),
        pictures=_pictures(comparison.files, logs),
        runs=Table("runs", "In the order of the command", _RUN_COLUMNS, [_run_cells(run) for run in runs]),
        settings=Table("settings", "Settings that differ", *_settings(comparison)),
        changes=Table("changes", "The worst first", *_changes(comparison)),
    )


def _run_cells(run: RunSummary) -> list[str]:
    return [
        run.file,
        f"{run.steps:,}",
        f"{run.epochs:,}",
        *(number_text(value) for value in (run.loss, run.best_validation_loss)),
        "-" if run.best_epoch is None else str(run.best_epoch),
        "-" if run.accuracy is None else f"{run.accuracy:.2%}",
        "-" if run.seconds is None else duration_text(run.seconds),
        number_text(run.steps_per_second),
    ]


def _settings(comparison: Comparison) -> tuple[list[Column], list[list[str]]]:
    columns = [Column("setting"), *(Column(file) for file in comparison.files)]
    settings = comparison.settings.items()
    return columns, [[name, *("-" if value is None else value for value in values)] for name, values in settings]


def _changes(comparison: Comparison) -> tuple[list[Column], list[list[str]]]:
    validate = comparison.kind == "validate"
    group, subject = ("check", "node or output") if validate else ("op", "case")
    unit = "error / limit" if validate else "ms"
    columns = [Column("change", "choice"), Column(group, "choice"), Column(subject, "name")]
    columns += [Column(f"{unit}, {when}", "number") for when in ("before", "after")]
    columns.append(Column("after / before", "number"))
    return columns, [_change_cells(change) for change in comparison.changes]


def _change_cells(change: Change) -> list[str]:
    numbers = [number_text(value) for value in (change.before, change.after, change.factor)]
    return [change.state, change.group, change.subject, *numbers]


def _pictures(files: Sequence[str], logs: Sequence[Logged]) -> list[Picture]:
    """Returns the curves of all runs over the steps and over the time."""
    steps = [[record for record in log.records if "loss" in record] for log in logs]
    epochs = [[record for record in log.records if "loss" not in record] for log in logs]
    pictures: list[Picture] = []
    for key, title, lead, records, is_noisy in (
        ("loss", "Loss", "The exponential mean of the losses of the steps.", steps, True),
        ("validation_loss", "Validation loss", "After each epoch.", epochs, False),
        ("accuracy", "Accuracy", "Of the validations.", epochs, False),
    ):
        for axis, over in (("step", "step"), ("seconds", "time in seconds")):
            series = [
                _series(file, points_of(run, key, axis), number, is_noisy=is_noisy, is_few=len(logs) <= _FEW)
                for number, (file, run) in enumerate(zip(files, records, strict=False))
            ]
            drawn = curves(series, 240, log=key != "accuracy")
            if drawn is not None:
                pictures.append(Picture(f"{key}-{axis}", f"{title} by {over}", lead, drawn))
    return pictures


def _series(file: str, points: list[Point], number: int, *, is_noisy: bool, is_few: bool) -> Series:
    """Returns the curve of a run; of noisy values also their range, if there are few runs."""
    shown = points if is_few or not is_noisy else smoothed(points)
    return Series(file, shown, number, smooth=is_noisy and is_few, dots=not is_noisy)
