"""Dropouts in training mode whose mask nothing reads: ONNX Runtime would remove them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import bngrad
from bngrad.passes.workarounds.keep_dropout import KeepDropoutPass

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'
DROPS = {
    "computed-data": "s = Neg (x) d = Dropout (s, r, on)",
    "mask-unread": "s = Neg (x) d, mask = Dropout (s, r, on)",
    "data": "d = Dropout (x, r, on)",
    "mode-is-fed": "s = Neg (x) d = Dropout (s, r, mode)",
}
KEPT = {
    "inference": "s = Neg (x) d = Dropout (s, r)",
    "inference-said": "s = Neg (x) d = Dropout (s, r, off)",
    "mask-read": "s = Neg (x) e, mask = Dropout (s, r, on) z = Cast <to = 1> (mask) d = Mul (e, z)",
}


def model(body):
    return onnx.parser.parse_model(
        HEADER + "g (float[64,32] x, float[32,8] w, bool mode) => (float loss) "
        f"<float r = {{0.25}}, bool on = {{1}}, bool off = {{0}}> {{ {body} "
        "y = MatMul (d, w) loss = ReduceMean <keepdims = 0> (y) }"
    )


def feeds():
    return {"x": np.ones((64, 32), np.float32), "w": np.ones((32, 8), np.float32), "mode": np.array(True)}


@pytest.mark.parametrize("body", DROPS.values(), ids=DROPS)
def test_a_training_graph_drops(body):
    graph = bngrad.differentiate(model(body), loss="loss", wrt=["w"])
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    inputs = {value.name: feeds()[value.name] for value in session.get_inputs() if value.name in feeds()}
    gradient = session.run(["w_grad"], inputs)[0][:, 0] * 8
    # Each row is the mean of 64 elements that are 0 or 4 / 3.
    assert np.unique(gradient).size > 4
    assert abs(gradient).mean() == pytest.approx(1, abs=0.06)


@pytest.mark.parametrize("body", KEPT.values(), ids=KEPT)
def test_others_stay_as_they_are(body):
    ir_model = ir.from_proto(model(body))
    assert not KeepDropoutPass()(ir_model).modified


@pytest.mark.parametrize("body", DROPS.values(), ids=DROPS)
def test_names_stay_and_the_pass_is_idempotent(body):
    ir_model = ir.from_proto(model(body))
    assert KeepDropoutPass()(ir_model).modified
    assert "d" in {value.name for node in ir_model.graph for value in node.outputs}
    assert not KeepDropoutPass()(ir_model).modified
    onnx.checker.check_model(ir.to_proto(ir_model), full_check=True)
