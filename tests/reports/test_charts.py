"""The geometry of the charts: what is above the limit is drawn above it, and nothing is left out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bngrad.reports.html.charts import HIGHEST, LOWEST, LogAxis, decades, histogram, power_text, ratio
from bngrad.reports.html.page import byte_text, number_text
from bngrad.reports.html.scatter import Point, scatter

RATIOS = {
    "half": (2.0, 4.0, 0.5),
    "none-allowed": (1e-9, 0.0, math.inf),
    "nothing": (0.0, 0.0, 0.0),
    "infinite": (math.inf, 4.0, math.inf),
}


@pytest.mark.parametrize("case", RATIOS)
def test_ratio(case):
    measure, limit, expected = RATIOS[case]
    assert ratio(measure, limit) == expected


@pytest.mark.parametrize("limit", [0.0, 1.0])
def test_the_ratio_of_nan(limit):
    assert math.isnan(ratio(math.nan, limit))


DECADES = {
    "none": ([], (-2, 1)),
    "ordinary": ([0.3, 0.001], (-3, 1)),
    "far": ([1e-30, 1e30], (LOWEST, HIGHEST)),
    "special": ([0.0, math.inf, math.nan], (-2, 1)),
    "failed": ([0.5, 2e4], (-2, 5)),
}


@pytest.mark.parametrize("case", DECADES)
def test_decades(case):
    ratios, expected = DECADES[case]
    assert decades(ratios) == expected


@pytest.mark.parametrize("special", [False, True])
def test_the_axis_keeps_the_order_and_its_height(special):
    axis = LogAxis(-6, 3, 320, zero=special, infinite=special)
    values = [1e-20, 1e-6, 1e-3, 0.999, 1.0, 1.001, 1e3, 1e20]
    heights = [axis.y(value) for value in values]
    assert heights == sorted(heights, reverse=True)
    assert axis.y(0.999) >= axis.y(1.0) >= axis.y(1.001)
    assert all(0 < height < 320 for height in heights)
    if special:
        assert axis.y(math.inf) == axis.y(math.nan) < min(heights)
        assert axis.y(0.0) > max(heights)
    labels = [tick.label for tick in axis.ticks]
    assert ("0" in labels, "∞, NaN" in labels) == (special, special)
    assert len({tick.at for tick in axis.ticks}) == len(labels)


def test_a_histogram_counts_every_ratio():
    generator = np.random.default_rng(0)
    ratios = [*(10 ** generator.uniform(-12, 12, 1000)), 0.0, 0.0, math.inf, math.nan, 1.0]
    chart = histogram(ratios, LOWEST, HIGHEST)
    counts = [int(bar.label.split(": ")[1].split()[0]) for bar in chart.bars]
    assert sum(counts) == len(ratios)
    failed = sum(count for bar, count in zip(chart.bars, counts, strict=True) if bar.failed)
    assert failed == sum(not value <= 1 for value in ratios)
    for bar in chart.bars:
        assert bar.failed is (bar.x + 1e-9 >= chart.limit)
        assert 0 < bar.height <= chart.height - bar.y + 0.1
    assert chart.bars[0].label == "no error: 2 comparisons"
    assert chart.bars[-1].label == "infinite or NaN: 2 comparisons"


EDGES = {"at-the-limit": (1.0, False), "just-above": (1.0000001, True), "just-below": (0.9999999, False)}


@pytest.mark.parametrize("case", EDGES)
def test_the_limit_in_a_histogram(case):
    value, failed = EDGES[case]
    (bar,) = histogram([value], -3, 2).bars
    assert bar.failed is failed


def test_an_empty_histogram():
    assert histogram([], -2, 1).bars == []


def point(place, value, *, series=0):
    return Point(place, value, series, not value <= 1, f"{place}")


def test_a_picture_keeps_the_largest_and_the_failed():
    points = [point(place, 0.001 * (1 + place % 7), series=place % 2) for place in range(5000)]
    points += [point(17, 3.0), point(17, 4.0), point(math.inf, math.nan)]
    chart = scatter(points, loss=2499)
    assert chart.places == 5001
    assert sum(mark.failed for mark in chart.marks) == 3
    assert len(chart.marks) <= 2 * 300 + 3
    assert chart.boundary == pytest.approx(50, abs=0.1)
    assert all(0 < mark.x < 100 for mark in chart.marks)
    assert all((mark.y < chart.limit) is mark.failed for mark in chart.marks)
    assert len(chart.data["ranks"]) == len(chart.data["y"]) == len(points)


@pytest.mark.parametrize("loss", [None, -1, 99])
def test_a_picture_without_two_passes(loss):
    assert scatter([point(0, 0.5), point(1, 0.5)], loss).boundary is None


TEXTS = {
    "1.23e-07": number_text(1.234e-7),
    "∞": number_text(math.inf),
    "-∞": number_text(-math.inf),
    "NaN": number_text(math.nan),
    "-": number_text(None),
    "10⁻³": power_text(-3),
    "1": power_text(0),
    "10": power_text(1),
    "10¹²": power_text(12),
    "999 bytes": byte_text(999),
    "1.5 kB": byte_text(1500),
    "2.5 GB": byte_text(2_500_000_000),
}


@pytest.mark.parametrize("expected", TEXTS)
def test_numbers_as_text(expected):
    assert TEXTS[expected] == expected
