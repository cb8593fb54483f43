"""Sigmoids, whose small results ONNX Runtime's kernel loses, where a later node enlarges the error."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import bngrad
from bngrad.passes.workarounds.sigmoid import SigmoidPass
from pass_models import header, model, ops, proto, run

X = [-80.0, -60, -30, -20, -18, -17, -14, -10, -5, 0, 5, 17, 30, 80]

ENLARGED = {
    "logarithm": "z = Log (p)",
    "logarithm-of-a-sum": "e = Constant <value_float = 1e-30> () q = Add (p, e) z = Log (q)",
    "clipped": "e = Constant <value_float = 1e-7> () q = Clip (p, e) z = Log (q)",
    "moved": "s = Constant <value_ints = [-1, 1]> () q = Reshape (p, s) z = Log (q)",
    "divisor": "z = Div (x, p)",
    "normalized": "q = ReduceSum (p) z = Div (p, q)",
    "reciprocal": "z = Reciprocal (p)",
    "root": "z = Sqrt (p)",
    "power": "e = Constant <value_float = 0.5> () z = Pow (p, e)",
    "computed-power": "e = Abs (x) z = Pow (p, e)",
}
OTHERS = {
    "gate": "z = Mul (x, p)",
    "square": "e = Constant <value_float = 2.0> () z = Pow (p, e)",
    "dividend": "e = Exp (x) z = Div (p, e)",
    "product-of-matrices": "q = MatMul (p, p) z = Log (q)",
}


def sigmoid_model(rest, dtype="float"):
    return model(header(18) + f"g ({dtype}[14] x) => ({dtype}[M] z) {{ [p] p = Sigmoid (x) {rest} }}")


@pytest.mark.parametrize("name", [*ENLARGED, *OTHERS])
def test_which_are_computed_by_exp(name):
    before = sigmoid_model({**ENLARGED, **OTHERS}[name])
    assert SigmoidPass()(before).modified == (name in ENLARGED)
    assert ("Sigmoid" in ops(before)) == (name in OTHERS)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["logarithm", "divisor", "normalized", "root"])
def test_small_results_keep_their_digits(name, dtype):
    changed = sigmoid_model(ENLARGED[name], {np.float32: "float", np.float64: "double"}[dtype])
    SigmoidPass()(changed)
    x = np.array(X, dtype)
    p = 1 / (1 + np.exp(-x.astype(np.float64)))
    expected = {"logarithm": np.log(p), "divisor": x / p, "normalized": p / p.sum(), "root": np.sqrt(p)}[name]
    bound = 1e-6 if dtype == np.float32 else 1e-13
    np.testing.assert_allclose(run(ir.to_proto(changed), {"x": x})["z"], expected, rtol=bound, atol=bound)


def test_half_precision_is_computed_in_float():
    changed = sigmoid_model("z = Log (p)", "float16")
    SigmoidPass()(changed)
    x = np.array([-16, -14, -12, 0, 12] * 3, np.float16)[:14]
    expected = np.log(1 / (1 + np.exp(-x.astype(np.float64))))
    np.testing.assert_allclose(run(ir.to_proto(changed), {"x": x})["z"], expected, rtol=0.02)


def test_a_result_that_is_an_output_keeps_its_name():
    before = model(
        header(18) + "g (float[14] x) => (float[14] p, float[14] z) { [p] p = Sigmoid (x) [l] z = Log (p) }"
    )
    SigmoidPass()(before)
    assert [value.name for value in before.graph.outputs] == ["p", "z"]
    assert run(ir.to_proto(before), {"x": np.array(X, np.float32)})["p"][0] == pytest.approx(np.exp(-80), rel=1e-4)


def test_gradients_and_the_evaluation_graph():
    """-log(p + 1e-12): without the pass the loss is 27.6 and the gradient 0 below -18."""
    text = (
        header(18)
        + """g (float[3] x) => (float loss) <float[1] w = {1.0}> {
    y = Mul (x, w) p = Sigmoid (y) e = Constant <value_float = 1e-12> () q = Add (p, e)
    l = Log (q) loss = ReduceSum <keepdims = 0> (l) }"""
    )
    x = np.array([-15, -20, -25], np.float32)
    p = 1 / (1 + np.exp(-x.astype(np.float64)))
    loss, gradient = np.log(p + 1e-12).sum(), (x * p * (1 - p) / (p + 1e-12)).sum()
    graph = bngrad.differentiate(proto(text), wrt=["w"])
    results = list(run(graph, {"x": x, "w": np.ones(1, np.float32)}).values())
    np.testing.assert_allclose(np.ravel(np.hstack(results)), [loss, gradient], rtol=1e-5)
    step = bngrad.training_step(proto(text), loss="loss", wrt=["w"], optimizer="sgd")
    trainer = bngrad.Trainer(step, learning_rate=1e-3)
    assert trainer.evaluate(x=x)["loss"] == pytest.approx(loss, rel=1e-5)
    trainer.step(x=x)
    assert trainer.state_dict()["w"] == pytest.approx(1 - 1e-3 * gradient, rel=1e-5)
