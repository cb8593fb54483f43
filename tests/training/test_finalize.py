"""From training back to inference: weights and statistics in the forward model."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import bngrad
from bngrad.errors import InputError, ModelError

HEADER = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>\n'
FORWARD = """g (float[N,2,3] x, int64[N,3] labels, float[2] m, float[2] v) => (float loss, float[N,2,3] logits,
        float[2] m_new, float[2] v_new) <float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] m = {0, 0},
        float[2] v = {1, 1}> {
    [bn] y, m_new, v_new = BatchNormalization <training_mode = 1, epsilon = 0.1> (x, s, b, m, v)
    ratio = Constant <value = float {0.5}> ()
    on = Constant <value = bool {1}> ()
    [drop] logits = Dropout (y, ratio, on)
    [loss] loss = SoftmaxCrossEntropyLoss (logits, labels)
}"""
TRAINED = {
    "s": np.array([2, 3], np.float32),
    "b": np.array([-1, 1], np.float32),
    "m": np.array([0.5, -0.5], np.float32),
    "v": np.array([2, 0.25], np.float32),
}


def parse(text=FORWARD):
    return onnx.parser.parse_model(HEADER + text)


def run(model, x):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == ["x"]
    assert [value.name for value in session.get_outputs()] == ["logits"]
    return session.run(None, {"x": x})[0]


def expected(x, weights):
    column = {name: value.reshape(1, -1, 1) for name, value in weights.items()}
    return (x - column["m"]) / np.sqrt(column["v"] + 0.1) * column["s"] + column["b"]


@pytest.mark.parametrize("names", [{}, {"m": "m_new", "v": "v_new"}], ids=["by input", "by output"])
def test_output_is_that_of_the_running_statistics(names, rng):
    model = parse()
    before = model.SerializeToString()
    x = rng.standard_normal((4, 2, 3)).astype(np.float32)
    weights = {names.get(name, name): value for name, value in TRAINED.items()}
    result = bngrad.finalize(model, weights)
    assert model.SerializeToString() == before
    assert {node.op_type for node in result.graph.node} == {"BatchNormalization", "Identity"}
    np.testing.assert_allclose(run(result, x), expected(x, TRAINED), rtol=1e-6, atol=1e-6)


def test_what_is_not_given_keeps_its_value(rng):
    x = rng.standard_normal((4, 2, 3)).astype(np.float32)
    kept = {"s": np.float32([1, 2]), "b": np.float32([0, 1]), "m": np.float32([0, 0]), "v": np.float32([1, 1])}
    np.testing.assert_allclose(run(bngrad.finalize(parse(), {}), x), expected(x, kept), rtol=1e-6, atol=1e-6)


def test_agrees_with_the_training_graph_of_frozen_statistics(rng):
    """The deployed model is the training graph's own forward, with frozen statistics and no dropout."""
    forward = parse(FORWARD.replace("bool {1}", "bool {0}"))
    training = bngrad.differentiate(forward, loss="loss", frozen=["bn"])
    x = rng.standard_normal((4, 2, 3)).astype(np.float32)
    labels = np.zeros((4, 3), np.int64)
    feeds = {name: TRAINED[name] for name in ("s", "b", "m", "v")} | {"x": x, "labels": labels}
    session = bngrad.session(training, "function")
    names = {v.name for v in (*session.get_inputs(), *session.get_overridable_initializers())}
    (logits,) = session.run(["logits"], {name: value for name, value in feeds.items() if name in names})
    np.testing.assert_allclose(run(bngrad.finalize(forward, TRAINED), x), logits, rtol=1e-6, atol=1e-6)


def test_chosen_outputs():
    result = bngrad.finalize(parse(), TRAINED, outputs=["loss"])
    assert [value.name for value in result.graph.output] == ["loss"]
    assert {value.name for value in result.graph.input} == {"x", "labels"}


TRAINING_GRAPH = "g (float[2] dy, float[2] x) => (float[2] dx) { dx = com.microsoft.ReluGrad (dy, x) }"
ONLY_A_LOSS = "g (float[2] x) => (float loss) { loss = ReduceSum <keepdims = 0> (x) }"


@pytest.mark.parametrize(
    ("text", "weights", "outputs", "error", "message"),
    [
        (FORWARD, {"scale": TRAINED["s"]}, None, InputError, "'scale' is not a weight of this model"),
        (FORWARD, {"s": np.zeros(3, np.float32)}, None, InputError, r"shape \[3\]; expected \[2\]"),
        (FORWARD, {"s": np.zeros(2)}, None, InputError, "'s' is float64; expected float32"),
        (
            FORWARD,
            {"x": np.zeros((4, 2, 3), np.float32)},
            None,
            InputError,
            r"'x' is an input for data, float\[N, 2, 3\]; expected weights and running statistics",
        ),
        (FORWARD, {"m": TRAINED["m"], "m_new": TRAINED["m"]}, None, InputError, "'m' is given twice"),
        (FORWARD, {}, ["logit"], InputError, "'logit' is not an output .* did you mean 'logits'"),
        (ONLY_A_LOSS, {}, None, ModelError, "no output but losses"),
        (TRAINING_GRAPH, {}, None, ModelError, "is a training graph already: .*ReluGrad.*pass the forward model"),
    ],
    ids=[
        "unknown name",
        "wrong shape",
        "wrong type",
        "data",
        "given twice",
        "unknown output",
        "no output",
        "training graph",
    ],
)
def test_refusals(text, weights, outputs, error, message):
    with pytest.raises(error, match=message):
        bngrad.finalize(parse(text), weights, outputs=outputs)
