"""Gradient rules of users, for com.microsoft.Inverse, which has a kernel and no rule of bngrad."""

from __future__ import annotations

import re

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import bngrad
from bngrad.autodiff.rules import RULES
from bngrad.errors import InputError, UnsupportedNodeError

MODEL = """<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]>
g (float[N, 3, 3] x, float[N, 3, 3] w) => (float loss) <float[N, 3, 3] y> {
  y = com.microsoft.Inverse%s (x)
  p = Mul (y, w)
  loss = ReduceSum <keepdims = 0> (p)
}"""


def inverse(back: bngrad.Backward):
    """dX = -Y^T dY Y^T."""
    transposed = back.op("Transpose", back.y(), perm=[0, 2, 1])
    return [back.op("Neg", back.op("MatMul", back.op("MatMul", transposed, back.dY), transposed))]


@pytest.fixture
def register():
    """The decorator, without a trace after the test."""
    rules = dict(RULES)
    yield bngrad.gradient
    RULES.clear()
    RULES.update(rules)


def test_a_rule_is_used(register):
    assert register("com.microsoft", "Inverse")(inverse) is inverse
    graph = bngrad.differentiate(onnx.parser.parse_model(MODEL % ""), wrt=["x"])
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((2, 3, 3)) + 3 * np.eye(3) for _ in range(2))
    (gradient,) = session.run(["x_grad"], {"x": np.float32(x), "w": np.float32(w)})
    y = np.linalg.inv(x).transpose(0, 2, 1)
    np.testing.assert_allclose(gradient, -y @ w @ y, rtol=1e-4, atol=1e-5)


def test_the_last_rule_of_an_op_counts(register):
    register("com.microsoft", "Inverse")(lambda back: [back.dY])
    register("com.microsoft", "Inverse")(inverse)
    graph = bngrad.differentiate(onnx.parser.parse_model(MODEL % ""), wrt=["x"])
    assert "Neg" in {node.op_type for node in graph.graph.node}


def test_without_a_rule_it_is_refused():
    with pytest.raises(UnsupportedNodeError, match=r"Inverse node .* it has no gradient rule"):
        bngrad.differentiate(onnx.parser.parse_model(MODEL % ""), wrt=["x"])


@pytest.mark.parametrize(("attributes", "accepted"), [(None, True), (["alpha"], True), ([], False)], ids=str)
def test_attributes(register, attributes, accepted):
    register("com.microsoft", "Inverse", attributes=attributes)(inverse)
    model = onnx.parser.parse_model(MODEL % " <alpha = 1>")
    if accepted:
        assert bngrad.differentiate(model, wrt=["x"]).graph.output[-1].name == "x_grad"
        return
    with pytest.raises(UnsupportedNodeError, match="it has the attribute 'alpha'; expected none"):
        bngrad.differentiate(model, wrt=["x"])


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda back: back.dY, "expected a list of 1, one an input"),
        (lambda back: [back.dY, None], "returned 2 values; expected a list of 1"),
        (lambda _: [1.0], "returned 1.0; expected values that its Backward made"),
    ],
    ids=["no list", "too many", "no value"],
)
def test_what_a_rule_returns_is_checked(register, returned, message):
    register("com.microsoft", "Inverse")(returned)
    with pytest.raises(InputError, match=re.escape(message)):
        bngrad.differentiate(onnx.parser.parse_model(MODEL % ""), wrt=["x"])


@pytest.mark.parametrize(
    "key", [("", "Relu"), ("ai.onnx", "NonZero"), ("bngrad", "BatchNormalizationTraining")], ids=str
)
def test_ops_that_are_not_the_users(key):
    with pytest.raises(InputError, match="is not yours"):
        bngrad.gradient(*key)
