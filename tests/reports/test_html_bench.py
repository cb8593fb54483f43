"""The page of bench: bars for each case, in proportion to the times, and the table."""

from __future__ import annotations

import pytest

from bngrad.bench.case import Case
from bngrad.bench.measure import Measurement
from bngrad.bench.timing import Spread
from bngrad.reports.html.bench import write_html
from pages import Page

HEAD = {"library": "/lib/<b>.so", "version": "0.1.0", "isa": "avx2", "threads": 2, "repeats": 21}


def measured(shape, median, addition, count=1, **fields):
    case = Case(shape, (0, 2, 3), "float", **fields)
    return Measurement(
        case, count, Spread(0.9 * median, median, 1.2 * median), Spread(0.9 * addition, addition, 1.1 * addition)
    )


@pytest.fixture
def page(tmp_path):
    def make(rows, model="m.onnx"):
        write_html(HEAD, rows, model, tmp_path / "report.html")
        html = Page(tmp_path / "report.html")
        html.check_self_contained()
        return html

    return make


def test_cases(page):
    rows = [measured((32, 64, 56, 56), 4e-3, 3e-3, count=3), measured((2, 3, 4, 4), 2e-6, 1e-6, frozen=True)]
    html = page(rows)
    assert html.table["shape"] == ["32x64x56x56", "2x3x4x4"]
    assert html.table["ms"] == ["4", "0.002"]
    assert (html.table["quartile 1"], html.table["quartile 3"]) == (["3.6", "0.0018"], ["4.8", "0.0024"])
    assert html.table["op"] == ["grad", "grad, frozen"]
    assert html.table["of bandwidth"] == [f"{row.bandwidth_fraction:.2f}" for row in rows]
    for text in (
        "2 cases, avx2",
        "batch norms 4",
        "all batch norms 12 ms",
        "/lib/<b>.so",
        "grad, float, axes 0,2,3, 3 times",
    ):
        assert text in html.text
    widths = [
        float(has["width"].rstrip("%")) for tag, has in html.elements if tag == "rect" and has["class"] == "s0"
    ]
    assert widths[0] == pytest.approx(100 / 1.2, abs=0.01)  # the third quartile is the end of the scale
    assert widths[0] / widths[1] == pytest.approx(2000, rel=0.5)
    assert all(0 < width <= 100 for width in widths)


def test_faster_than_memory(page):
    """In the caches, the fraction is above 1: the scale reaches it, and its line is within the chart."""
    html = page([measured((2, 3, 4, 4), 1e-6, 5e-6)])
    (line,) = (has for tag, has in html.elements if tag == "line" and "dashed" in has["class"])
    assert 0 < float(line["x1"].rstrip("%")) < 50
    assert float(html.table["of bandwidth"][0]) > 2


def test_shapes_of_the_command_line(page):
    html = page([measured((2, 3, 4, 4), 1e-6, 5e-6)], model="")
    assert "shapes of the command line" in html.text
    assert "all batch norms" not in html.text
