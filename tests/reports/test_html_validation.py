"""The page of a validation: what it says of each kind of report, and that no name gets out of its place."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from bngrad.inspection.graph_nodes import GraphNode
from bngrad.inspection.identity import HashedFile, Identity
from bngrad.reports.html.validation import write_html
from bngrad.reports.rules import CHECKS
from bngrad.reports.visible import visible
from bngrad.runtime.environment import environment
from bngrad.validation.report import Check, Report, Row
from bngrad.validation.statistics import TensorStatistics
from pages import Page

TIMES = "\N{MULTIPLICATION SIGN}"
NAMES = {
    "markup": "<img src=x onerror=alert(1)>",
    "end-of-script": "</script><script>alert(1)</script>",
    "comment": "<!--<script>",
    "ampersand": "a&amp;b & c",
    "quotes": "\"a' onmouseover='alert(1)",
    "right-to-left": "\u202egradient\u2067",
    "template": "{{ 7 * 7 }}{% raw %}",
    "very-long": "layer." * 2000,
    "line-separator": "a\u2028b",
    "empty": "",
}


def row(subject="n", measure=0.5, limit=1.0, **fields):
    values = {"tensor": subject, "kind": "gradient", "implementation": "native", "against": "ort"} | fields
    return Row(
        subject,
        values.pop("tensor"),
        values.pop("kind"),
        values.pop("implementation"),
        values.pop("against"),
        max_abs=measure,
        relative_l2=measure,
        measure=measure,
        passed=measure <= limit,
        **values,
    )


def check(*rows, name="lock-step", limit=1.0, **fields):
    return Check(name, unit="of its bound", limit=limit, rows=list(rows), **fields)


def report(*checks, **fields):
    return Report("m.onnx", {}, "numeric", ["function"], 0, {}, checks=list(checks), **fields)


@pytest.fixture
def page(tmp_path):
    def make(result):
        write_html(result, tmp_path / "report.html")
        html = Page(tmp_path / "report.html")
        html.check_self_contained()
        return html

    return make


SHOWN = {
    "passed": (report(check(row())), ["Passed", "All 1 comparisons are within their limits"]),
    "failed": (
        report(check(row("a"), row("b", 3.5))),
        ["FAILED", "lock-step: 1 of 2 comparisons failed", "worst is b, 3.5 x limit"],
    ),
    "no-check": (report(), ["Incomplete", "nothing was compared", "No check was run."]),
    "no-row": (report(check()), ["Incomplete", "lock-step: nothing was compared"]),
    "skipped": (
        report(check(row()), check(name="float64", skipped="too many elements")),
        ["Passed", "checks run 1 of 2", "Skipped: too many elements", "float64 the whole check too many elements"],
    ),
    "required-and-skipped": (
        report(check(row()), check(name="central differences", skipped="too large", required=True)),
        ["Incomplete", "central differences: skipped, too large"],
    ),
    "undecided": (
        report(check(row(), undecided={"w_grad": "a kink"}, notes=["2 kinks"])),
        ["Passed", "not compared 1", "lock-step w_grad a kink", "Note: 2 kinks"],
    ),
    "nan": (report(check(row("a", math.nan))), ["FAILED", "worst is a, NaN x limit", "∞, NaN"]),
    "infinite": (
        report(check(row("a", math.inf, note="Got invalid dimensions"))),
        ["FAILED", "worst is a, ∞ x limit (Got invalid dimensions)", "∞, NaN"],
    ),
    "zero": (report(check(row("a", 0.0))), ["Passed", "Largest: 0 of its bound, limit 1"]),
    "no-tolerance": (report(check(row("a", 0.1, limit=0.0), limit=0.0)), ["FAILED", "worst is a, ∞ x limit"]),
    "other-limit": (
        report(check(row("a", 8e-9, limit=1e-9), limit=1e-9)),
        ["worst is a, 8 x limit", "Largest: 8e-09 of its bound, limit 1e-09"],
    ),
    "notes-and-warnings": (
        report(check(row()), notes=["by ORT"], warnings=["folded"]),
        ["warning folded", "note by ORT"],
    ),
    "inputs": (
        replace(report(check(row())), inputs={"x": [2, 3], "s": []}),
        ["Shapes of the 2 inputs", "x 2x3", "s scalar"],
    ),
}


@pytest.mark.parametrize("case", SHOWN)
def test_what_is_shown(case, page):
    result, texts = SHOWN[case]
    shown = page(result).text.replace(TIMES, "x")
    for text in texts:
        assert text in shown
    assert ("FAILED" in shown) == (result.verdict == "failed")


def test_a_failure_leads_on(page):
    """Two checks fail at one node of a chain; a third passes."""
    nodes = [
        GraphNode(f"n{i}", "Relu", "", (i - 1,) if i else (), f"net.py:{i}: y = relu(x)", (f"v{i}",))
        for i in range(4)
    ]
    bad, worse = row("n2", 2.0, tensor="v2"), row("v2", 9.0, tensor="v2")
    lock_step = check(row("n1", 0.1, tensor="v1"), bad)
    result = report(
        lock_step,
        check(worse, name="float64"),
        check(row("v0", tensor="v0"), name="whole graph"),
        nodes=nodes,
        command="bngrad validate 'a b.onnx' --seed 3",
    )
    html = page(result)
    links = [has for tag, has in html.elements if tag == "a" and "node" not in has.get("class", "")]
    hrefs = [has["href"] for has in links]
    ids = {has["id"] for _, has in html.elements if "id" in has}
    assert {href.removeprefix("#") for href in hrefs if href.startswith("#")} <= ids
    assert hrefs[:4] == ["#culprit-0", "#comparisons-0", "#culprit-1", "#comparisons-1"]
    assert sum(href.startswith("https://") for href in hrefs) == (2 if CHECKS["float64"].url else 0)
    assert html.table["check"][:2] == ["lock-step", "float64"]  # the order of the rows that the links name
    assert html.drawings == ["Near n2: lock-step", "Near n2: float64"]
    reds = [has for tag, has in html.elements if "refused" in has.get("class", "")]
    assert [(has["class"], has["href"]) for has in reds] == [("node refused centre", "#comparisons-0")] * 2
    for text in ("Where it failed", "net.py:2: y = relu(x)", "Repeat this bngrad validate 'a b.onnx' --seed 3"):
        assert text in html.text
    assert html.count("button", class_="copy") == 1


def test_a_failure_of_an_unknown_node_has_no_picture(page):
    html = page(report(check(row("b", 3.5))))
    assert html.drawings == []
    assert html.count("article", id="culprit-0") == 1
    assert "Where it failed" not in page(report(check(row()))).text


def test_the_verdict_is_first(page):
    text = page(report(check(row("b", 3.5)), warnings=["folded"])).text
    body = text[text.index("bngrad validate", 30) :]
    order = [body.index(part) for part in ("FAILED", "1 of 1 comparisons failed", "folded", "Error over limit")]
    assert order == sorted(order)


def test_what_was_run_is_identified(page):
    identity = Identity(
        [HashedFile("m.onnx", 1500, "ab" * 32), HashedFile("m.data", 3_000_000, "cd" * 32)], 17, 8, "torch 2", 1234
    )
    html = page(report(check(row()), identity=identity, environment=environment()))
    for text in ("ai.onnx 17, IR version 8", "1,234", "torch 2", "1.5 kB", "ab" * 32, "3 MB, m.data", "cd" * 32):
        assert text in html.text
    for name, text in (environment().versions | environment().machine).items():
        assert f"{name} {text}" in html.text


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_name_stays_in_its_place(name, page):
    plain = page(report(check(row("n", 2.0), undecided={"n": "n"}), notes=["n"], warnings=["n"]))
    statistics = {name: [TensorStatistics("input", name, "float32", [2], 0.0, 1.0, 0.5, 0.5, 1, 0, 0)]}
    result = report(
        check(row(name, 2.0, note=name), undecided={name: name}, notes=[name], statistics=statistics),
        notes=[name],
        warnings=[name],
    )
    result = replace(result, model=name, inputs={name: [1]}, batch_norms={name: 1}, against=name)
    html = page(result)
    assert html.table["node or output"] == [visible(name)]
    assert html.table["note"] == [visible(name)]
    assert " ".join(visible(name).split()) in html.text
    for tag in ("script", "img", "svg", "title"):
        assert html.count(tag) == plain.count(tag)
    # Every name that a reader sees is isolated, so that its direction does not leak.
    assert html.count("bdi") > 10


def test_all_rows_are_there_and_the_page_stays_small(page):
    rows = [row(f"layer{i}.weight", 0.001 * (i % 900), position=i // 3) for i in range(12_000)]
    rows[7_000] = row("bad", 5.0, position=2_000)
    html = page(report(check(*rows)))
    table = html.table
    assert len(table["result"]) == 12_000
    assert set(table["node or output"]) == {line.subject for line in rows}
    assert table["node or output"][0] == "bad"
    assert (table["result"].count("failed"), table["result"][0]) == (1, "failed")
    assert html.count("use", class_="failed") == 1
    assert html.count("use") < 1_000
    assert len(html.source) < 2_500_000


def test_failed_rows_are_readable_without_javascript(page):
    html = page(
        report(check(*(row(f"bad{i}", 2.0 + i) for i in range(120)), *(row(f"good{i}") for i in range(500))))
    )
    static = html.text[html.text.index("All comparisons") :]
    assert all(f"bad{i} " in static for i in range(120))
    assert "good0" not in static


def test_the_picture_is_in_graph_order(page):
    """Rows come in any order; the loss divides the passes; what has no position is last."""
    rows = [
        row(name, measure, position=position, kind=kind)
        for name, measure, position, kind in (
            ("w_grad", 0.9, 30, "gradient"),
            ("bn", 0.1, 4, "BatchNormInternal"),
            ("loss", 0.5, 10, "loss"),
            ("unknown", 0.2, None, "graph"),
        )
    ]
    html = page(report(check(*rows)))
    (picture,) = (data for data in html.data if "ranks" in data)
    order = dict(zip(html.table["node or output"], picture["ranks"], strict=True))
    assert order == {"bn": 0, "loss": 1, "w_grad": 2, "unknown": 3}
    assert (picture["count"], picture["boundary"]) == (4, 2)
    heights = dict(zip(html.table["node or output"], picture["y"], strict=True))
    assert heights["w_grad"] < heights["loss"] < heights["unknown"] < heights["bn"]
    assert "forward" in html.text
    assert "backward" in html.text


def test_the_tensors_of_the_worst_nodes(page):
    tensors = [
        TensorStatistics("input", "x", "float32", [2, 3], -1.5, 2.5, 0.25, 1e-7, 4, 1, 2),
        TensorStatistics("computed by native", "dx", "float16", [], None, None, None, None, 0, 1, 0),
    ]
    result = report(check(row("a", 7.0), row("b"), statistics={"a": tensors, "gone": tensors}))
    html = page(result)
    assert "input x float32 2x3 -1.5 2.5 0.25 1e-07 4 1 2" in html.text
    assert "computed by native dx float16 scalar - - - - 0 1 0" in html.text
    assert html.count("details", class_="card worst") == 1
    assert html.count("td", class_="number bad") == 3


def test_a_file_name_that_is_no_text(page):
    assert r"a\udcff.onnx" in page(replace(report(check(row())), model="a\udcff.onnx")).text


def test_a_check_without_rows_takes_no_color(page):
    """The colors of the picture are those of the checks in it, in their order."""
    html = page(report(check(row()), check(name="float64", skipped="too large"), check(row(), name="whole graph")))
    assert html.count("span", class_="dot s0") == html.count("span", class_="dot s1") == 2
    assert html.count("span", class_="dot s2") == 0
    assert (html.count("use", class_="s0"), html.count("use", class_="s1")) == (1, 1)
