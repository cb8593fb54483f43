"""The result of `compare`, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Kind = Literal["train", "validate", "bench"]
"""The command that wrote the files."""

State = Literal["now fails", "worse", "gone", "new", "now passes", "better", "same"]
"""The change of a node, an output or a case; the worst come first."""


@dataclass(frozen=True)
class RunSummary:
    """The end of a training run, and its best values."""

    file: str
    """The log."""
    steps: int
    """The number of the last step."""
    epochs: int
    """The number of the last epoch."""
    loss: float | None
    """The exponential mean of the losses at the last step; null if none is finite."""
    best_validation_loss: float | None
    """The lowest validation loss; null without validation data."""
    best_epoch: int | None
    """The epoch with that loss; null without validation data."""
    accuracy: float | None
    """The accuracy there, as a fraction; null if the model is not a classifier."""
    seconds: float | None
    """The time of the run; null if the log does not have it."""
    steps_per_second: float | None
    """The steps in a second, without the first of an epoch; null if the log does not have times."""


@dataclass(frozen=True)
class Change:
    """A node or an output of `validate`, or a case of `bench`, in both files."""

    group: str
    """The check of `validate`; the op of `bench`."""
    subject: str
    """The node or the output; the shape, the axes and the type of a case."""
    before: float | None
    """The largest error over its limit, or the median in milliseconds; null if only the second file has it."""
    after: float | None
    """The same of the second file; null if only the first file has it."""
    state: State
    """The kind of the change."""

    @property
    def factor(self) -> float | None:
        """The value after over that before; None if one is missing or 0."""
        return self.after / self.before if self.before and self.after else None


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`."""

    kind: Kind
    """The command that wrote the files."""
    files: list[str]
    """The files."""
    settings: dict[str, list[str | None]]
    """The options, versions and other settings that differ, each with its value in each file; null for none."""
    runs: list[RunSummary] = field(default_factory=list)
    """The training runs; empty for reports."""
    changes: list[Change] = field(default_factory=list)
    """The changes, the worst first; empty for runs."""

    def to_dict(self) -> dict[str, Any]:
        """Returns what ``--json`` prints."""
        return asdict(self)


def differing(settings: list[dict[str, str]]) -> dict[str, list[str | None]]:
    """Returns the settings that are not the same in all files, by name, in the order of the files."""
    names = dict.fromkeys(name for values in settings for name in values)
    by_name = {name: [values.get(name) for values in settings] for name in names}
    return {name: values for name, values in by_name.items() if len(set(values)) > 1}
