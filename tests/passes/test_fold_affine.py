"""A scale and a shift after a batch norm become part of it: the same numbers, the same gradients."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx_ir.passes.common import ShapeInferencePass

from bngrad.passes.optimize.fold_affine import FoldAffinePass
from bngrad.training.differentiate import differentiate
from bngrad.validation.float64 import evaluate

HEADER = '<ir_version: 8, opset_import: ["" : 18]>\n'
VALUES = "float[N,3,4] x, float[3] s, float[3] b, float[3] m, float[3] v, float[3,1] p, float[1,3,1] q, float[3] r"
BATCH_NORM = "y, mn, vn = BatchNormalization <training_mode = MODE> (x, s, b, m, v)"
UNSQUEEZED = "one = Constant <value_ints = [1]> ()\n r1 = Unsqueeze (r, one)\n"
TO_LOSS = "\n t = Sin (z)\n loss = ReduceSum <keepdims = 0> (t)"


def model(body, mode=1, outputs="float loss"):
    batch_norm = (
        BATCH_NORM.replace("MODE", str(mode))
        if mode
        else BATCH_NORM.replace("y, mn, vn", "y").replace("MODE", "0")
    )
    text = f"{HEADER} g ({VALUES}) => ({outputs}) {{ {batch_norm}\n {body} }}"
    return ir.from_proto(onnx.parser.parse_model(text))


FOLDED = {
    "scale and shift": "a = Mul (y, p)\n z = Add (a, q)",
    "operands the other way round": "a = Mul (p, y)\n z = Add (q, a)",
    "shift alone": "z = Add (y, p)",
    "scale alone": "z = Mul (y, p)",
    "shift before scale": "a = Add (y, q)\n z = Mul (a, p)",
    "unsqueezed": UNSQUEEZED + "a = Mul (y, r1)\n z = Add (a, p)",
    "twice the same": "a = Mul (y, p)\n z = Add (a, p)",
}
LEFT_ALONE = {
    "another reader": "a = Mul (y, p)\n z = Add (a, y)",
    "one element for each position": "z = Mul (y, x)",
    "subtraction": "z = Sub (y, p)",
    "a computed operand": "c = Exp (p)\n z = Mul (y, c)",
    "the last dimension": "w = Constant <value_floats = [1.0, 2.0, 3.0, 4.0]> ()\n z = Mul (y, w)",
    "squared": "z = Mul (y, y)",
}


@pytest.mark.parametrize("case", [*FOLDED, *LEFT_ALONE])
@pytest.mark.parametrize("mode", [1, 0], ids=["training", "frozen"])
def test_gradients_are_those_of_the_two_nodes(case, mode, rng):
    body = (FOLDED | LEFT_ALONE)[case]
    forward = model(body + TO_LOSS, mode)
    checked = forward.clone()
    ShapeInferencePass()(checked)
    assert FoldAffinePass()(checked).modified == (case in FOLDED)
    (z,) = (value for node in checked.graph for value in node.outputs if value.name == "z")
    assert (z.producer().op_type == "BatchNormalization") == (case in FOLDED)
    onnx.checker.check_model(ir.to_proto(checked), full_check=True)

    shapes = {"x": (5, 3, 4), "p": (3, 1), "q": (1, 3, 1)}
    names = [str(value.name) for value in forward.graph.inputs]
    feeds = {name: rng.standard_normal(shapes.get(name, (3,))) for name in names}
    feeds["v"] = np.abs(feeds["v"]) + 0.5
    wrt = [n for n, value in zip(names, forward.graph.inputs, strict=True) if value.uses() and n not in ("m", "v")]
    training = differentiate(forward, loss="loss", wrt=wrt).model
    results = evaluate(ir.to_proto(training), feeds)
    direction = {name: rng.standard_normal(feeds[name].shape) for name in wrt}
    ahead, behind = (
        evaluate(ir.to_proto(forward), feeds | {n: feeds[n] + step * direction[n] for n in wrt}, ["loss"])["loss"]
        for step in (1e-6, -1e-6)
    )
    got = sum(float(np.sum(results[f"{name}_grad"] * direction[name])) for name in wrt)
    assert abs(got - float(ahead - behind) / 2e-6) <= 1e-6 * max(1, abs(got))


def test_an_output_of_the_graph_stays():
    forward = model("a = Mul (y, p)\n loss = ReduceSum <keepdims = 0> (a)", 0, "float loss, float[N,3,4] y")
    ShapeInferencePass()(forward)
    assert not FoldAffinePass()(forward).modified
