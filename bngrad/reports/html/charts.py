"""The geometry of charts, which templates draw as SVG.

Horizontal positions are percentages, so that a chart fits any width and its text keeps its size; vertical ones are
pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

LOWEST, HIGHEST = -8, 8
"""The most decades below and above the limit that a chart shows; what is beyond is drawn at the edge."""

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def ratio(measure: float, limit: float) -> float:
    """Returns a measure over its limit; infinity for a positive measure without a tolerance."""
    if limit:
        return measure / limit
    return measure if math.isnan(measure) else math.inf if measure else 0.0


def power_text(exponent: int) -> str:
    """Returns a power of ten, such as 10⁻³; 1 and 10 as they are."""
    return {0: "1", 1: "10"}.get(exponent) or "10" + str(exponent).translate(_SUPERSCRIPTS)


def decades(ratios: Sequence[float]) -> tuple[int, int]:
    """Returns the range of exponents of ratios: at least from -2 to 1, at most from `LOWEST` to `HIGHEST`."""
    logs = [math.log10(value) for value in ratios if 0 < value < math.inf]
    low = math.floor(min(logs, default=-2))
    high = math.ceil(max(logs, default=1))
    return max(min(low, -2), LOWEST), min(max(high, 1), HIGHEST)


@dataclass(frozen=True)
class Tick:
    """A labelled position on an axis."""

    at: float
    label: str


@dataclass(frozen=True)
class LogAxis:
    """A vertical logarithmic axis, with lanes of their own for zero and for what is not finite."""

    low: int
    high: int
    height: int
    zero: bool
    infinite: bool

    _TOP = 30  # room for the names of the passes
    _PAD = 14
    _LANE = 24

    @property
    def top(self) -> float:
        """Where the highest decade is."""
        return self._TOP + (self._LANE if self.infinite else 0)

    @property
    def bottom(self) -> float:
        """Where the lowest decade is."""
        return self.height - self._PAD - (self._LANE if self.zero else 0)

    def y(self, value: float) -> float:
        """Returns the position of a ratio in pixels from the top."""
        if not math.isfinite(value):
            return float(self._TOP)
        if value <= 0:
            return float(self.height - self._PAD)
        part = (min(max(math.log10(value), self.low), self.high) - self.low) / (self.high - self.low)
        return round(self.bottom - part * (self.bottom - self.top), 1)

    @property
    def ticks(self) -> list[Tick]:
        """The labels: a decade each, or every second one if there are many."""
        step = 1 if self.high - self.low <= 8 else 2
        ticks = [Tick(self.y(10.0**e), power_text(e)) for e in range(self.low, self.high + 1) if e % step == 0]
        ticks += [Tick(self.y(math.inf), "∞, NaN")] if self.infinite else []
        return ticks + ([Tick(self.y(0), "0")] if self.zero else [])


@dataclass(frozen=True)
class Bar:
    """A bar of a histogram, from ``x`` percent on, with its label."""

    x: float
    width: float
    y: float
    height: float
    failed: bool
    label: str


@dataclass(frozen=True)
class Histogram:
    """The number of ratios in each half decade."""

    bars: list[Bar]
    ticks: list[Tick]
    limit: float
    """Where the limit is, in percent."""
    height: int


def histogram(ratios: Sequence[float], low: int, high: int, height: int = 84) -> Histogram:
    """Returns the histogram of ratios; zeros are in the first bin, infinities and NaN in the last.

    Args:
        ratios: The values.
        low: The first decade.
        high: The last decade; values beyond are in the bins at the ends.
        height: The height of the chart in pixels.
    """
    bins = 2 * (high - low) + 2
    counts = [0] * bins
    for value in ratios:
        if not math.isfinite(value):
            counts[-1] += 1
        elif value <= 0:
            counts[0] += 1
        else:
            # At the limit is not above it.
            place = math.ceil(2 * (math.log10(value) - low))
            counts[min(max(place, 1), bins - 2)] += 1
    width, most = 100 / bins, max(counts, default=0) or 1
    bars = []
    for index, count in enumerate(counts):
        if count:
            tall = max(count / most * (height - 14), 3.0)
            label = f"{_bin_label(index, bins, low)}: {count} comparison{'s' if count > 1 else ''}"
            failed = index > -2 * low
            bars.append(Bar(index * width, width, round(height - tall, 1), round(tall, 1), failed, label))
    step = max(1, math.ceil((high - low) / 5))
    marked = [exponent for exponent in range(low + 1, high + 1) if exponent % step == 0]
    ticks = [Tick((1 + 2 * (exponent - low)) * width, power_text(exponent)) for exponent in marked]
    ticks += [Tick(width / 2, "0")] if counts[0] else []
    ticks += [Tick(100 - width / 2, "∞")] if counts[-1] else []
    return Histogram(bars, ticks, (1 - 2 * low) * width, height)


def _bin_label(index: int, bins: int, low: int) -> str:
    if index in (0, bins - 1):
        return "no error" if index == 0 else "infinite or NaN"
    start = low + (index - 1) / 2
    above, below = f"{10**start:.2g}", f"{10 ** (start + 0.5):.2g}"
    if start == LOWEST or start + 0.5 == HIGHEST:
        return f"below {below} of the limit" if start < 0 else f"above {above} times the limit"
    return f"{above} to {below} of the limit"
