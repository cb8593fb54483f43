"""Points of curves, and times of steps, from the records of a training run."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Records = Sequence[Mapping[str, Any]]


def points_of(records: Records, key: str, over: str = "step") -> list[tuple[float, float]]:
    """Returns the finite values of a key, each after that of another key in the same record."""
    values = ((record.get(over), record.get(key)) for record in records)
    return [(at, value) for at, value in values if at is not None and value is not None and math.isfinite(value)]


def durations(steps: Records) -> list[tuple[float, float]]:
    """Returns the milliseconds of each step but the first of an epoch, before which there may be a validation."""
    return [
        (after["step"], 1000 * (after["seconds"] - before["seconds"]))
        for before, after in pairwise(steps)
        if after["step"] == before["step"] + 1
        and after.get("epoch") == before.get("epoch")
        and None not in (before.get("seconds"), after.get("seconds"))
        and after["seconds"] >= before["seconds"]
    ]


def speed_of(steps: Records) -> float | None:
    """Returns the steps in a second; None if their times are unknown."""
    times = [duration for _, duration in durations(steps)]
    total = sum(times)
    return 1000 * len(times) / total if total else None
