"""The page of a rewrite: the graph before and after, with what changed in color."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from bngrad.autodiff.gradient_nodes import rewrite
from bngrad.reports.html.graph import MOST
from bngrad.reports.html.rewriting import write_html
from bngrad.reports.visible import visible
from pages import Page

MODEL = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
g (float[N,3,4,4] dy, float[N,3,4,4] x, float[3] s, float[3] b, float[3] m, float[3] v)
    => (float[N,3,4,4] dx, float[3] ds, float[3] db) {{
    [forward] y, m2, v2, sm, si = com.microsoft.BatchNormInternal<epsilon = 0.001, momentum = 0.9>(x, s, b, m, v)
    [neg] n0 = Neg(dy)
    {chain}
    [backward] dx, ds, db = com.microsoft.BatchNormalizationGrad<epsilon = 0.001>(n{last}, x, s, sm, si)
}}"""


def model_of(length):
    chain = "\n".join(f"[c{i}] n{i + 1} = Neg(n{i})" for i in range(length))
    return ir.from_proto(onnx.parser.parse_model(MODEL.format(chain=chain, last=length)))


@pytest.fixture
def page(tmp_path):
    def make(model, names=("a.onnx", "b.onnx")):
        result = rewrite(model)
        by_op = {"New": result.rewritten, "Lowered": result.lowered}
        write_html(tmp_path / "page.html", names, (model, result.model), by_op, result.candidates)
        html = Page(tmp_path / "page.html")
        html.check_self_contained()
        return html

    return make


def test_a_small_graph(page):
    html = page(model_of(1))
    assert html.drawings == ["Before: All nodes, from top to bottom", "After: All nodes, from top to bottom"]
    for text in ("4 nodes to 4", "2 nodes were replaced by 2", "New: 1 BatchNormalizationTraining, 1 Batch"):
        assert text in html.text
    for kind in ("foreign", "training"):
        assert html.count("a", class_=f"node {kind}") == 2
    links = [has["href"] for tag, has in html.elements if tag == "a"]
    assert sorted(links) == sorted(f"#{side}-{i}" for side in ("before", "after") for i in range(4))
    assert {link.removeprefix("#") for link in links} <= {has.get("id") for _, has in html.elements}


def test_a_large_graph_has_the_neighbourhoods_of_what_changed(page):
    html = page(model_of(MOST))
    assert html.drawings == [
        "Before: Near forward",
        "Before: Near backward",
        "After: Near forward",
        "After: Near backward",
    ]
    assert f"More than {MOST} nodes; these are the neighbourhoods of 2 of 2 that changed" in html.text


@pytest.mark.parametrize("name", ["<b onclick=x>", "</script><script>x</script>", "\u202eabc", "x" * 5000])
def test_a_name_stays_in_its_place(name, page):
    model, plain = model_of(1), page(model_of(1))
    model.graph[1].name = name
    html = page(model, (name, name))
    assert visible(name) in html.table["name"]
    assert [tag for tag, _ in html.elements if tag != "wbr"] == [tag for tag, _ in plain.elements if tag != "wbr"]
