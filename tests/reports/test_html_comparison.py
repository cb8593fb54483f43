"""The page of a comparison: curves, tables, verdict; names stay in their places."""

from __future__ import annotations

import math

import pytest

from bngrad.reports.compare.comparison import Change, Comparison
from bngrad.reports.compare.runs import compare_runs
from bngrad.reports.html.comparison import write_html
from bngrad.reports.visible import visible
from bngrad.training.run_log import Logged
from pages import Page

NAMES = ["<b onclick=x>", "</script><script>x</script>", "a & b", "\u202eabc", "x" * 5000, "{{ 1 }}"]


@pytest.fixture
def page(tmp_path):
    def make(comparison, logs=()):
        write_html(comparison, logs, tmp_path / "page.html")
        html = Page(tmp_path / "page.html")
        html.check_self_contained()
        return html

    return make


def log(rate, options):
    steps = [{"step": i, "epoch": 1, "loss": math.exp(-rate * i), "seconds": i / 9} for i in range(1, 50)]
    epoch = {"step": 49, "epoch": 1, "validation_loss": rate, "accuracy": 0.5, "seconds": 6}
    return Logged(options, [*steps, epoch])


@pytest.mark.parametrize("count", [2, 3, 8])
def test_runs(count, page):
    logs = [log(0.1 * (i + 1), {"learning-rate": str(i), "epochs": "1"}) for i in range(count)]
    files = [f"run{i}.jsonl" for i in range(count)]
    html = page(compare_runs(files, logs), logs)
    for text in (f"{count} training runs", "lowest validation loss, 0.1, is that of run0.jsonl", "Loss by step"):
        assert text in html.text
    assert "Accuracy by time in seconds" in html.text
    assert html.table["run"] == files
    assert html.table["accuracy there"] == ["50.00%"] * count
    raw = sum("raw" in has.get("class", "").split() for _, has in html.elements)
    assert raw == (2 * count if count <= 3 else 0)
    assert {f"curve c{i}" for i in range(count)} <= {has.get("class") for _, has in html.elements}
    assert "learning-rate" in html.text
    assert "epochs 1" not in html.text  # the same in all


CHANGES = [
    Change("lock-step", "bn", 0.5, 3.0, "now fails"),
    Change("float64", "w_grad", 0.2, math.nan, "worse"),
    Change("float64", "v_grad", None, 0.1, "new"),
    Change("float64", "u_grad", 0.5, 0.0, "better"),
]


def test_reports(page):
    html = page(Comparison("validate", ["a.json", "b.json"], {"seed": ["0", None]}, changes=CHANGES))
    for text in ("2 worse", "now fails 1", "worse or better by a factor of 2", "By node", "seed 0 -"):
        assert text in html.text
    tables = [block for block in html.data if "columns" in block]
    columns = {
        column["label"]: cells for column, cells in zip(tables[1]["columns"], tables[1]["cells"], strict=True)
    }
    assert columns["after / before"] == ["6", "NaN", "-", "-"]
    assert html.count("section", class_="verdict failed") == 1


VERDICTS = {"passed": CHANGES[2:], "warned": CHANGES[1:], "failed": CHANGES}


@pytest.mark.parametrize("verdict", VERDICTS)
def test_the_verdict(verdict, page):
    html = page(Comparison("bench", ["a", "b"], {}, changes=VERDICTS[verdict]))
    assert html.count("section", class_=f"verdict {verdict}") == 1
    assert "No setting and no version." in html.text
    assert "By case" in html.text


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_name_stays_in_its_place(name, page):
    def found(text):
        change = Change(text, text, 1.0, 2.0, "worse")
        return Comparison("validate", [text, text], {text: [text, None]}, changes=[change])

    plain, html = page(found("n")), page(found(name))
    assert visible(name) in html.table["setting"]
    assert [tag for tag, _ in html.elements if tag != "wbr"] == [tag for tag, _ in plain.elements if tag != "wbr"]
