"""A comparison as tables of text."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from bngrad.reports.tables import Column

if TYPE_CHECKING:
    from bngrad.reports.compare.comparison import Change, Comparison, RunSummary

    Table = tuple[list[Column], list[list[str]]]

WORSE = ("now fails", "worse", "gone")
"""The changes that are always shown."""


def run_rows(comparison: Comparison) -> Table:
    """Returns the table of training runs."""
    headings = (
        "steps",
        "epochs",
        "mean loss",
        "lowest validation loss",
        "epoch",
        "accuracy",
        "seconds",
        "steps/s",
    )
    columns = [Column("run", name=True), *(Column(heading, right=True) for heading in headings)]
    return columns, [_run(run) for run in comparison.runs]


def setting_rows(comparison: Comparison) -> Table:
    """Returns the table of the settings that differ."""
    columns = [Column("setting", name=True), *(Column(file) for file in comparison.files)]
    return columns, [[name, *(value or "-" for value in values)] for name, values in comparison.settings.items()]


def counts_line(comparison: Comparison) -> str:
    """Returns the number of changes of each kind."""
    counts = Counter(change.state for change in comparison.changes)
    listed = ", ".join(f"{count} {state}" for state, count in counts.items())
    return f"{comparison.files[0]} to {comparison.files[1]}: {listed or 'nothing to compare'}"


def change_rows(comparison: Comparison, most: int) -> Table:
    """Returns the table of the changes: those that are worse, and others up to a number."""
    validate = comparison.kind == "validate"
    group, subject = ("check", "node or output") if validate else ("op", "case")
    unit = "error / limit" if validate else "ms"
    columns = [Column("change"), Column(group), Column(subject, name=True)]
    columns += [Column(heading, right=True) for heading in (f"{unit} before", "after", "factor")]
    changed = [change for change in comparison.changes if change.state != "same"]
    worse = sum(change.state in WORSE for change in changed)
    return columns, [_change(change) for change in changed[: max(worse, most)]]


def _run(run: RunSummary) -> list[str]:
    return [
        run.file,
        str(run.steps),
        str(run.epochs),
        _number(run.loss),
        _number(run.best_validation_loss),
        "-" if run.best_epoch is None else str(run.best_epoch),
        "-" if run.accuracy is None else f"{run.accuracy:.2%}",
        "-" if run.seconds is None else f"{run.seconds:.1f}",
        _number(run.steps_per_second),
    ]


def _change(change: Change) -> list[str]:
    numbers = [_number(value) for value in (change.before, change.after, change.factor)]
    return [change.state, change.group, change.subject, *numbers]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
