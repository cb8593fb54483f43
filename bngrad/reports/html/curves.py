"""The geometry of curves over steps or time: raw values as the range in each column, and a smoothed line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bngrad.reports.html.charts import Tick, power_text

if TYPE_CHECKING:
    from collections.abc import Sequence

COLUMNS = 400
"""The most columns that a curve is drawn in; more would not be seen."""

WIDTH = 1000
"""The width of a picture in the units of its paths; the page stretches it."""

_HALF_LIVES = 40
"""The half-lives of the smoothing in the length of a run, so that runs of all lengths look alike."""

_DECADES = 1.0
"""The least range of positive values, in decades, for a logarithmic axis."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """A curve of a picture."""

    label: str
    points: Sequence[Point]
    """Steps and finite values."""
    style: int
    """The number of its color."""
    smooth: bool = False
    """True to draw it pale, with a smoothed line over it."""
    dots: bool = False
    """True to mark each point."""


@dataclass(frozen=True)
class Line:
    """A path with its color; ``raw`` is the pale one."""

    label: str
    path: str
    style: int
    raw: bool
    dots: list[Point]
    """The places of marks: x in percent, y in pixels."""
    last: str
    """The last value as text."""


@dataclass(frozen=True)
class Curves:
    """A picture of curves over steps."""

    lines: list[Line]
    ticks: list[Tick]
    """Those of the vertical axis, in pixels."""
    steps: list[Tick]
    """Those of the horizontal axis, in percent."""
    height: int


@dataclass(frozen=True)
class Picture:
    """A picture of curves with its heading."""

    id: str
    title: str
    lead: str
    curves: Curves


def curves(
    series: Sequence[Series], height: int = 200, *, steps: tuple[float, float] | None = None, log: bool = False
) -> Curves | None:
    """Returns a picture of curves; None if there is no point.

    Args:
        series: The curves.
        height: The height of the picture in pixels.
        steps: The first and the last step of the picture; by default those of the curves.
        log: Whether the vertical axis is logarithmic if the values allow it.
    """
    series = [curve for curve in series if curve.points]
    if not series:
        return None
    xs = [x for curve in series for x, _ in curve.points]
    first, last = steps or (min(xs), max(xs))
    shown = [(curve, smoothed(curve.points) if curve.smooth else list(curve.points)) for curve in series]
    values = [y for curve in series for _, y in curve.points]
    axis = _Axis(values, height, log=log)

    def place(point: Point) -> Point:
        part = (point[0] - first) / (last - first) if last > first else 0.5
        return round(part * WIDTH, 1), axis.y(point[1])

    lines = []
    for curve, points in shown:
        if curve.smooth:
            raw = _path([place(point) for point in ranges(curve.points)])
            lines.append(Line(curve.label, raw, curve.style, raw=True, dots=[], last=""))
        places = [place(point) for point in ranges(points)]
        dots = [(x / WIDTH * 100, y) for x, y in places] if curve.dots and len(points) <= COLUMNS else []
        text = f"{points[-1][1]:.4g}"
        lines.append(Line(curve.label, _path(places), curve.style, raw=False, dots=dots, last=text))
    ticks = [Tick((x - first) / (last - first) * 100, f"{x:,}") for x in _round_steps(first, last)]
    return Curves(lines, axis.ticks, ticks, height)


def smoothed(points: Sequence[Point]) -> list[Point]:
    """Returns the exponential mean of the values up to each point, without a bias to the first."""
    decay = 0.5 ** (_HALF_LIVES / max(len(points), _HALF_LIVES))
    mean, weight, result = 0.0, 0.0, []
    for x, y in points:
        mean, weight = decay * mean + (1 - decay) * y, decay * weight + (1 - decay)
        result.append((x, mean / weight))
    return result


def ranges(points: Sequence[Point]) -> list[Point]:
    """Returns the points themselves if they are few, else the lowest and the highest of each column, in order."""
    if len(points) <= 2 * COLUMNS:
        return list(points)
    chosen = []
    for column in range(COLUMNS):
        part = points[column * len(points) // COLUMNS : (column + 1) * len(points) // COLUMNS]
        ends = (min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1]))
        chosen += sorted(set(ends))
    return chosen


class _Axis:
    """A vertical axis: logarithmic if all values are positive and of several magnitudes."""

    def __init__(self, values: Sequence[float], height: int, *, log: bool) -> None:
        low, high = min(values), max(values)
        self._log = log and low > 0 and math.log10(high / low) >= _DECADES
        self._height = height
        scaled = [math.log10(low), math.log10(high)] if self._log else [low, high]
        pad = 0.05 * (scaled[1] - scaled[0]) or abs(scaled[0]) * 0.1 or 1.0
        self._low, self._high = scaled[0] - pad, scaled[1] + pad
        if not self._log and low >= 0:
            self._low = max(self._low, 0.0)

    def y(self, value: float) -> float:
        """Returns the place of a value in pixels from the top."""
        scaled = math.log10(value) if self._log else value
        return round((self._high - scaled) / (self._high - self._low) * (self._height - 8) + 4, 1)

    @property
    def ticks(self) -> list[Tick]:
        if self._log:
            whole = range(math.ceil(self._low), math.floor(self._high) + 1)
            every = max(1, len(whole) // 5)
            powers = [Tick(self.y(10.0**power), power_text(power)) for power in whole if power % every == 0]
            if len(powers) > 2:
                return powers
            decades = range(math.floor(self._low), math.ceil(self._high))
            numbers = [factor * 10.0**power for power in decades for factor in (1, 2, 5)]
            return [
                Tick(self.y(number), f"{number:g}")
                for number in numbers
                if self._low <= math.log10(number) <= self._high
            ]
        step = _round_step((self._high - self._low) / 4)
        first = math.ceil(self._low / step)
        numbers = [number * step for number in range(first, math.floor(self._high / step) + 1)]
        return [Tick(self.y(number), f"{number:.6g}") for number in numbers]


def _round_step(least: float) -> float:
    """Returns the next of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def _round_steps(first: float, last: float) -> list[int]:
    if last <= first:
        return []
    step = max(1, round(_round_step((last - first) / 5)))
    return list(range(math.ceil(first / step) * step, math.floor(last) + 1, step))


def _path(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
