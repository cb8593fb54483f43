"""The hash of a graph: the parts that it depends on, and those that it does not."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from bngrad.graph.graph_digest import graph_digest

TEXT = """<ir_version: 9, opset_import: ["" : 18, "own" : 1]>
g (float[N,3] x, bool flag) => (float[N,3] y) <float[3] w = {1, 2, 3}> {
    c = Constant <value = float[3] {4, 5, 6}> ()
    a = Mul (x, w)
    b = own.twice <by = 2.0> (a)
    d = If (flag) <
        then_branch = t () => (float[N,3] p) { p = Add (b, c) },
        else_branch = e () => (float[N,3] q) { q = LeakyRelu <alpha = 0.1> (b) }
    >
    y = Tanh (d)
}
<domain: "own", opset_import: ["" : 18]>
twice <by> (z) => (r) {
    k = Constant <value_float : float = @by> ()
    r = Mul (z, k)
}"""


def digest(text=TEXT, output="y"):
    model = ir.from_proto(onnx.parser.parse_model(text))
    values = {value.name: value for node in model.graph for value in node.outputs}
    return graph_digest(model, {"result": values[output]})


OTHERS = {
    "weight": ("{1, 2, 3}", "{1, 2, 3.0000002}"),
    "constant": ("{4, 5, 6}", "{4, 5, 7}"),
    "operation": ("Tanh", "Sin"),
    "order-of-inputs": ("p = Add (b, c)", "p = Sub (c, b)"),
    "attribute-of-a-body": ("alpha = 0.1", "alpha = 0.2"),
    "body": ("LeakyRelu <alpha = 0.1> (b)", "Neg (b)"),
    "argument-of-a-function": ("by = 2.0", "by = 3.0"),
    "body-of-a-function": ("r = Mul (z, k)", "r = Add (z, k)"),
    "input": (" x", " xx"),
    "type": ("float[N", "double[N"),
    "opset": ('["" : 18, "own" : 1]', '["" : 17, "own" : 1]'),
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_it_depends_on(case):
    old, new = OTHERS[case]
    changed = TEXT.replace(old, new)
    if case == "input":
        changed = changed.replace("(x, w)", "(xx, w)")
    assert changed != TEXT
    assert digest(changed) != digest()


def test_it_depends_on_which_value_is_the_output():
    assert digest(output="d") != digest(output="y")


THE_SAME = {
    "names-of-values": [(" a = ", " aa = "), ("(a)", "(aa)"), (" p", " pp"), ("d = ", "dd = "), ("(d)", "(dd)")],
    "name-of-a-constant": [("w = ", "weight = "), ("x, w", "x, weight")],
    "unused-node": [("    a = Mul", "    unused = Exp (x)\n    a = Mul")],
    "order-of-nodes": [
        ("    c = Constant <value = float[3] {4, 5, 6}> ()\n", ""),
        ("    d = If", "    c = Constant <value = float[3] {4, 5, 6}> ()\n    d = If"),
    ],
}


@pytest.mark.parametrize("case", THE_SAME)
def test_what_it_does_not_depend_on(case):
    changed = TEXT
    for old, new in THE_SAME[case]:
        assert old in changed
        changed = changed.replace(old, new)
    assert digest(changed) == digest()


def test_external_data(tmp_path):
    """The contents of external data count, and not their location."""
    digests = []
    for name, number in (("first", 1), ("second", 1), ("third", 2)):
        text = TEXT.replace(" <float[3] w = {1, 2, 3}>", "")
        proto = onnx.parser.parse_model(text)
        proto.graph.initializer.append(numpy_helper.from_array(np.full(3, number, np.float32), "w"))
        onnx.save(proto, tmp_path / name, save_as_external_data=True, location=f"{name}.data", size_threshold=0)
        model = ir.load(tmp_path / name)
        assert isinstance(model.graph.initializers["w"].const_value, ir.ExternalTensor)
        digests.append(graph_digest(model, {"y": model.graph.outputs[0]}))
    assert digests[0] == digests[1] != digests[2]
