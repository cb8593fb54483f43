"""Timing in interleaved trials, so that other load on the machine affects all compared calls alike."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

TRIAL_SECONDS = 0.005
"""The duration of a trial: long enough that the clock's overhead is negligible, short against interruptions."""

WARM_SECONDS = 0.05
"""The duration of the warm-up before each trial: caches are cold, and cores may need time to reach full speed."""

_MAX_CALLS = 10_000


class Spread(NamedTuple):
    """The quartiles of a call's times, in seconds."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """Returns the quartiles of one or more times in seconds."""
        return cls(*map(float, np.quantile(seconds, [0.25, 0.5, 0.75])))

    def in_ms(self) -> dict[str, float]:
        """Returns the quartiles in milliseconds, for a JSON document."""
        return {quartile: 1e3 * seconds for quartile, seconds in self._asdict().items()}

    def __str__(self) -> str:
        low, median, high = (1e3 * seconds for seconds in self)
        return f"{median:.4g} ({low:.4g}-{high:.4g})"


def run_trial(call: Callable[[], object], calls: int) -> float:
    """Runs a trial: warms up for `WARM_SECONDS`, then returns the mean time of some calls in seconds.

    Args:
        call: The function to time.
        calls: Number of calls to time; at least 1.
    """
    end = time.perf_counter() + WARM_SECONDS
    call()
    while time.perf_counter() < end:
        call()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def calls_per_trial(seconds: float) -> int:
    """Returns the number of calls per trial, if a call takes ``seconds``."""
    return max(1, min(_MAX_CALLS, math.ceil(TRIAL_SECONDS / max(seconds, 1e-9))))


def time_interleaved(trials: Mapping[str, Callable[[int], float]], repeats: int) -> dict[str, Spread]:
    """Runs the trials of several alternatives in turn.

    Args:
        trials: The alternatives by name; each takes a number of calls and returns the seconds per call, as
            `run_trial` does.
        repeats: Number of trials of each.
    """
    calls = {name: calls_per_trial(trial(1)) for name, trial in trials.items()}
    times: dict[str, list[float]] = {name: [] for name in trials}
    for _ in range(repeats):
        for name, trial in trials.items():
            times[name].append(trial(calls[name]))
    return {name: Spread.of(seconds) for name, seconds in times.items()}
