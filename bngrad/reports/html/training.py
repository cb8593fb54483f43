"""Writes a training run as HTML, also while it goes on."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bngrad.inspection.identity import identity
from bngrad.io.files import as_ir
from bngrad.reports.html.curves import Picture, Series, curves, smoothed
from bngrad.reports.html.page import number_text, render_page, write_page
from bngrad.reports.html.table import Column, Table
from bngrad.reports.run_records import durations, points_of, speed_of
from bngrad.runtime.environment import environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from bngrad.inspection.identity import Identity
    from bngrad.runtime.environment import Environment
    from bngrad.training.history import History

    Records = Sequence[Mapping[str, Any]]

RUNNING, KEPT = "training", "so far"
"""The status of a run that goes on, whose page loads itself again; and that of a trainer, which may go on."""

_SECONDS = 5.0
"""The least time between two pages of a run that goes on."""

_COLUMNS = [
    Column("epoch", "number"),
    Column("step", "number"),
    Column("training loss", "number"),
    Column("validation loss", "number"),
    Column("accuracy", "number"),
    Column("learning rate", "number"),
    Column("seconds", "number"),
]


@dataclass(frozen=True)
class RunFacts:
    """The facts about a run that do not change while it goes on."""

    title: str
    """The name of the training step."""
    options: Mapping[str, str] = field(default_factory=dict)
    """The options, as text by name."""
    summary: str = ""
    """A line on the data and the model."""
    epochs: int | None = None
    """The number of epochs of the whole run; None if it is unknown."""
    identity: Identity | None = None
    """The training step: hashes and counts."""
    device: str = "cpu"


class RunPage:
    """The page of a training run, which is written again as the run goes on.

    Args:
        path: The file.
        facts: The facts about the run.
    """

    def __init__(self, path: Path, facts: RunFacts) -> None:
        self._path, self._facts = path, facts
        self._environment: Environment = environment(facts.device)
        self._next = 0.0

    def update(self, records: Records) -> None:
        """Writes the page if the last one is some seconds old.

        Raises:
            InputError: The file cannot be written.
        """
        if time.monotonic() >= self._next:
            self.write(records, RUNNING)
            self._next = time.monotonic() + _SECONDS

    def write(self, records: Records, status: str) -> None:
        """Writes the page.

        Args:
            records: The records of the run, as the log has them.
            status: How the run ended; `RUNNING` if it has not.

        Raises:
            InputError: The file cannot be written.
        """
        write_page(self._path, "training", **_content(self._facts, self._environment, records, status))


def write_history(path: Path, history: History) -> None:
    """Writes the page of a trainer's history.

    Raises:
        InputError: The file cannot be written.
    """
    RunPage(path, _facts(history)).write(history.records, KEPT)


def history_page(history: History) -> str:
    """Returns the page of a trainer's history."""
    facts = _facts(history)
    return render_page("training", **_content(facts, environment(facts.device), history.records, KEPT))


def _facts(history: History) -> RunFacts:
    return RunFacts("Trainer", history.options, identity=identity(as_ir(history.model)), device=history.device)


def _content(facts: RunFacts, machine: Environment, records: Records, status: str) -> dict[str, Any]:
    """Returns the values of the template's variables."""
    steps = [record for record in records if "loss" in record]
    epochs = [record for record in records if "loss" not in record]
    losses = points_of(steps, "loss")
    validated = [record for record in epochs if record.get("validation_loss") is not None]
    return {
        "facts": facts,
        "environment": machine,
        "status": status,
        "running": status == RUNNING,
        "state": {"not finite": "failed", RUNNING: "plain", KEPT: "plain", "interrupted": "warned"}.get(
            status, "passed"
        ),
        "steps": max((record["step"] for record in records), default=0),
        "epoch": max((record["epoch"] for record in records if "epoch" in record), default=0),
        "loss": smoothed(losses)[-1][1] if losses else None,
        "best": min(validated, key=lambda record: record["validation_loss"], default=None),
        "seconds": max((record.get("seconds") or 0.0 for record in records), default=0.0),
        "speed": speed_of(steps),
        "pictures": _pictures(steps, epochs),
        "not_finite": sum(record["loss"] is None for record in steps),
        "table": _table(steps, epochs),
    }


def _pictures(steps: Records, epochs: Records) -> list[Picture]:
    span = (float(steps[0]["step"]), float(steps[-1]["step"])) if steps else None
    loss = curves(
        [
            Series("training", points_of(steps, "loss"), 0, smooth=True),
            Series("validation", points_of(epochs, "validation_loss"), 3, dots=True),
        ],
        280,
        steps=span,
        log=True,
    )
    accuracy = curves([Series("accuracy", points_of(epochs, "accuracy"), 1, dots=True)], 160, steps=span)
    rate = curves([Series("learning rate", points_of(steps, "learning_rate"), 2)], 120, steps=span)
    norm = Series("gradient norm", points_of(steps, "gradient_norm"), 1, smooth=True)
    times = Series("milliseconds", durations(steps), 4, smooth=True)
    candidates = (
        ("loss", "Loss", "Each step, pale; their exponential mean; and the validations.", loss),
        ("accuracy", "Accuracy", "Of the validations.", accuracy),
        ("rate", "Learning rate", "Of each step.", rate),
        ("norm", "Norm of the gradients", "Before they are clipped.", curves([norm], 160, steps=span, log=True)),
        (
            "time",
            "Milliseconds a step",
            "From a step to the next, with files written between; without the first of an epoch.",
            curves([times], 120, steps=span),
        ),
    )
    return [Picture(name, title, lead, drawn) for name, title, lead, drawn in candidates if drawn is not None]


def _table(steps: Records, epochs: Records) -> Table:
    rates = {record["step"]: record.get("learning_rate") for record in steps}
    rows = [
        [
            str(record.get("epoch", "-")),
            f"{record['step']:,}",
            *(number_text(record.get(key)) for key in ("training_loss", "validation_loss")),
            "-" if record.get("accuracy") is None else f"{record['accuracy']:.2%}",
            number_text(rates.get(record["step"])),
            "-" if record.get("seconds") is None else f"{record['seconds']:.1f}",
        ]
        for record in reversed(epochs)
    ]
    return Table("epochs", "Epochs, the last one first", _COLUMNS, rows)
