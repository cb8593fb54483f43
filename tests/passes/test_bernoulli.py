"""Bernoulli: ONNX Runtime draws 1 with the probability of 0."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import bngrad
from bngrad.passes.workarounds.bernoulli import BernoulliPass

DRAWS = {
    "float": "d = Bernoulli (p)",
    "of-another-type": "e = Bernoulli <dtype = 9> (p) d = Cast <to = 1> (e)",
    "seeded": "d = Bernoulli <seed = 3.0> (p)",
    "double": "q = Cast <to = 11> (p) e = Bernoulli (q) d = Cast <to = 1> (e)",
    "half": "q = Cast <to = 10> (p) e = Bernoulli <dtype = 1> (q) d = Identity (e)",
}


def model(body):
    return onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>\n'
        "g (float[64,64] x, float[64,64] p, float[1] w) => (float loss) "
        f"{{ {body} a = Mul (d, x) y = Mul (a, w) loss = ReduceMean <keepdims = 0> (y) }}"
    )


@pytest.mark.parametrize("body", DRAWS.values(), ids=DRAWS)
def test_a_training_graph_draws_with_the_given_probability(body):
    graph = bngrad.differentiate(model(body), loss="loss", wrt=["w"])
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    data = {"x": np.ones((64, 64), np.float32), "w": np.ones(1, np.float32)}
    for rate in (0.2, 1.0, 0.0):
        (gradient,) = session.run(["w_grad"], {**data, "p": np.full((64, 64), rate, np.float32)})
        assert gradient[0] == pytest.approx(rate, abs=0.04)


def test_names_and_types_stay():
    ir_model = ir.from_proto(model(DRAWS["of-another-type"]))
    assert BernoulliPass()(ir_model).modified
    assert [value.name for node in ir_model.graph for value in node.outputs if value.name in ("e", "d")] == [
        "e",
        "d",
    ]
    onnx.checker.check_model(ir.to_proto(ir_model), full_check=True)


def test_validation_in_a_run_draws_with_the_given_probability():
    forward = model("d = Bernoulli (p)")
    step = bngrad.training_step(forward, loss="loss", wrt=["w"], values={"w": np.ones(1, np.float32)})
    trainer = bngrad.Trainer(step, learning_rate=0.0)
    ones = np.ones((64, 64), np.float32)
    assert trainer.step(x=ones, p=ones * np.float32(0.2)) == pytest.approx(0.2, abs=0.04)
    assert trainer.evaluate(x=ones, p=ones * np.float32(0.2))["loss"] == pytest.approx(0.2, abs=0.04)
