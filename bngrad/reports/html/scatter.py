"""The picture of a validation: error over limit of every comparison, in graph order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bngrad.reports.html.charts import LogAxis, decades

if TYPE_CHECKING:
    from collections.abc import Sequence

HEIGHT = 320

_COLUMNS = 300
"""The columns of a picture without JavaScript; each has the largest passed ratio of a series."""

_MOST_FAILED = 1000


@dataclass(frozen=True)
class Point:
    """A comparison."""

    place: float
    """Its place in graph order; infinity if it is not known."""
    ratio: float
    series: int
    failed: bool
    label: str


@dataclass(frozen=True)
class Mark:
    """A drawn point: ``x`` in percent, ``y`` in pixels."""

    x: float
    y: float
    series: int
    failed: bool
    label: str


@dataclass(frozen=True)
class Scatter:
    """The picture."""

    axis: LogAxis
    marks: list[Mark]
    places: int
    """The number of places."""
    boundary: float | None
    """The begin of the backward pass, in percent; None if it is not known."""
    data: dict[str, Any]
    """The data for the script: for each point its rank in graph order, and its vertical position."""

    @property
    def limit(self) -> float:
        """The position of the limit, in pixels."""
        return self.axis.y(1.0)


def scatter(points: Sequence[Point], loss: float | None) -> Scatter:
    """Arranges points.

    Args:
        points: The points; the script finds the row of each in the table by its index.
        loss: The place of the loss, after which the backward pass begins; None if it is not known.
    """
    ratios = [point.ratio for point in points]
    low, high = decades(ratios)
    zero, infinite = any(r == 0 for r in ratios), not all(map(math.isfinite, ratios))
    axis = LogAxis(low, high, HEIGHT, zero=zero, infinite=infinite)
    ranks = {place: rank for rank, place in enumerate(sorted({point.place for point in points}))}
    count = len(ranks)
    shown = _shown(points, ranks)
    marks = [Mark(percent(ranks[p.place], count), axis.y(p.ratio), p.series, p.failed, p.label) for p in shown]
    boundary = None
    if loss is not None:
        before = sum(place <= loss for place in ranks)
        boundary = percent(before - 0.5, count) if 0 < before < count else None
    data = {
        "ranks": [ranks[point.place] for point in points],
        "y": [axis.y(point.ratio) for point in points],
        "count": count,
        "boundary": None if boundary is None else before,
    }
    return Scatter(axis, marks, count, boundary, data)


def percent(rank: float, count: int) -> float:
    """Returns the horizontal position of a rank; the script computes the same."""
    return round(100 * (rank + 0.5) / max(count, 1), 3)


def _shown(points: Sequence[Point], ranks: dict[float, int]) -> list[Point]:
    """Returns the points without JavaScript: the largest of each column and series, and the failed points."""
    largest: dict[tuple[int, int], Point] = {}
    for point in points:
        column = ranks[point.place] * min(_COLUMNS, len(ranks)) // len(ranks)
        key = (column, point.series)
        if not point.failed and (key not in largest or point.ratio > largest[key].ratio):
            largest[key] = point
    failed = [point for point in points if point.failed]
    return [*largest.values(), *failed[:_MOST_FAILED]]
