"""Time, taken in turns: whatever else a machine does then hits all that are compared alike."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

TURN_SECONDS = 0.005
"""A turn is as many calls as take this long: the clock then costs nothing, and one interruption little."""

WARM_SECONDS = 0.05
"""Calls that are not timed come first, for this long. After a rest the caches hold something else, and cores,
above all the second one of a virtual machine, need up to 40 ms until they are as fast as in a loop of this alone
(measured: half as fast until then)."""

_MOST_CALLS = 10_000


class Spread(NamedTuple):
    """The quartiles of a call's times, in seconds."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """Returns the quartiles of times in seconds, of which there is at least one."""
        return cls(*map(float, np.quantile(seconds, [0.25, 0.5, 0.75])))

    def in_ms(self) -> dict[str, float]:
        """Returns them in milliseconds, for a JSON document."""
        return {quartile: 1e3 * seconds for quartile, seconds in self._asdict().items()}

    def __str__(self) -> str:
        low, median, high = (1e3 * seconds for seconds in self)
        return f"{median:.4g} ({low:.4g}-{high:.4g})"


def run_turn(call: Callable[[], object], calls: int) -> float:
    """Returns the seconds of a call, the mean of some.

    Others, at least one, come first, see `WARM_SECONDS`.

    Args:
        call: What to time.
        calls: How many to time; at least 1.
    """
    end = time.perf_counter() + WARM_SECONDS
    call()
    while time.perf_counter() < end:
        call()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def calls_of_turn(seconds: float) -> int:
    """Returns how many calls make a turn, if one takes ``seconds``."""
    return max(1, min(_MOST_CALLS, math.ceil(TURN_SECONDS / max(seconds, 1e-9))))


def take_turns(ways: Mapping[str, Callable[[int], float]], repeats: int) -> dict[str, Spread]:
    """Times ways of doing one thing in turns.

    Args:
        ways: By name; each takes a number of calls and returns the seconds of one, as `run_turn` does.
        repeats: How many turns each has.
    """
    calls = {name: calls_of_turn(way(1)) for name, way in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            times[name].append(way(calls[name]))
    return {name: Spread.of(seconds) for name, seconds in times.items()}
