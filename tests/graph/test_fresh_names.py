"""New names and new constants."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from bngrad.graph.fresh_names import ConstantAxes, Names, int64_constant
from passes.pass_models import axes_of, header, model

GRAPH = """g (float[2] x, bool c) => (float[2] y) <float[2] w = {1, 2}> {
    z = Add(x, w)
    y = If(c) <then_branch = t () => (float[2] a) { a = Neg(z) },
               else_branch = e () => (float[2] b) <float[2] u = {3, 4}> { b = Mul(z, u) }>
}"""


@pytest.mark.parametrize("taken", ["x", "y", "z", "w", "c", "a", "b", "u"])
def test_no_name_of_the_model_is_given_out(taken):
    assert Names(model(GRAPH)).fresh(taken) == f"{taken}_1"


def test_a_new_name_is_given_as_wanted_once():
    names = Names(model(GRAPH))
    assert [names.fresh("new") for _ in range(3)] == ["new", "new_1", "new_2"]
    assert names.fresh("new_1") == "new_1_1"


def test_a_numbered_name_that_is_taken_is_skipped():
    names = Names(model("g (float[2] n, float[2] n_1) => (float[2] n_2) { n_2 = Add(n, n_1) }"))
    assert names.fresh("n") == "n_3"
    assert [names.fresh(name) for name in ("n_4", "n")] == ["n_4", "n_5"]


def test_values_of_functions_are_taken():
    names = Names(
        model(
            header(17, "f")
            + """g (float[2] x) => (float[2] y) { y = f.F(x, x) }
            <domain: "f", opset_import: ["" : 17]> F (p, unused) => (r) { q = Neg(p)  r = Neg(q) }"""
        )
    )
    assert [names.fresh(n) for n in ("p", "q", "r", "unused")] == ["p_1", "q_1", "r_1", "unused_1"]


def test_one_constant_for_each_graph_and_set_of_axes():
    graph = model(GRAPH)
    axes = ConstantAxes(Names(graph))
    add, branch = graph.graph[0], graph.graph[1]
    inner = branch.attributes["then_branch"].as_graph()[0]
    first = axes.value(add, (0, 2))
    assert axes.value(branch, (0, 2)) is first
    assert axes.value(add, (0,)) is not first
    assert axes.value(inner, (0, 2)) is not first
    assert first.producer().graph is graph.graph
    assert axes.value(inner, (0, 2)).producer().graph is inner.graph
    names = [
        n.outputs[0].name for n in ir.traversal.RecursiveGraphIterator(graph.graph) if n.op_type == "Constant"
    ]
    assert sorted(names) == ["bngrad_axes_0", "bngrad_axes_0_2", "bngrad_axes_0_2_1"]


def test_a_constant_stands_before_everything_that_may_use_it():
    graph = model(GRAPH)
    ConstantAxes(Names(graph)).value(graph.graph[1], (0,))
    assert graph.graph[0].op_type == "Constant"


@pytest.mark.parametrize("values", [(0, 2, 3), (-1,), ()], ids=str)
def test_int64_constant(values):
    node = int64_constant(values, "axes")
    (output,) = node.outputs
    assert (node.op_type, node.domain, node.name, output.name) == ("Constant", "", "axes", "axes")
    assert (output.dtype, list(output.shape)) == (ir.DataType.INT64, [len(values)])
    assert axes_of(ir.node("Any", [output])) == list(values)
