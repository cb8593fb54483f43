"""The loss, and the values to differentiate with respect to: names, defaults, and errors."""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir
import pytest

from autodiff.gradient_cases import in_standard_onnx
from autodiff.small_models import BRANCHES, SUM, X, differentiated, gradients, model, output_names, summed
from bngrad.autodiff.training_graph import training_graph
from bngrad.errors import ModelError
from bngrad.runtime.session import session

TWO = f"y = Exp(x) {SUM} other = ReduceMean <keepdims = 0> (y)"
TWO_LOSSES = model("float[3] x", TWO, outputs="float loss, float other, float[3] y")

# name: (model, options, its gradient by x)
GRADIENTS = {
    "one-of-two-losses": (TWO_LOSSES, {"loss": "loss"}, np.exp(X)),
    "the-other": (TWO_LOSSES, {"loss": "other"}, np.exp(X) / 3),
    "a-loss-that-is-read-further": (
        model("float[3] x", f"y = Exp(x) {SUM} z = Sqrt(loss)", outputs="float loss, float z"),
        {"loss": "loss"},
        np.exp(X),
    ),
    # x decides the choice, and is chosen: only the second has a gradient.
    "stop-edges-carry-nothing": (
        summed("float[3] x", "zero = Sub(x, x) c = Greater(x, zero) z = Exp(x) y = Where(c, x, z)"),
        {},
        np.where(X > 0, 1, np.exp(X)),
    ),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient_by_x(name):
    forward, options, want = GRADIENTS[name]
    result = gradients(forward, {"x": X}, wrt=["x"], **options)
    np.testing.assert_allclose(result["x_grad"], want, rtol=1e-6)


@pytest.mark.parametrize("shape", ["", "[1]", "[1, 1]"])
def test_a_loss_of_one_element(shape):
    forward = model("float[1, 1] x, int64[R] r", "h = Exp(x) loss = Reshape(h, r)", outputs=f"float{shape} loss")
    rank = len(shape.split(",")) if shape else 0
    feeds = {"x": np.array([[0.5]], np.float32), "r": np.ones(rank, np.int64)}
    np.testing.assert_allclose(gradients(forward, feeds, wrt=["x"])["x_grad"], [[np.exp(0.5)]])


SCALE = "y = Mul(x, w)"
SCALED = {
    "input": summed("float[3] x, float[3] w", SCALE),
    "initializer": summed("float[3] x", SCALE, initializers="float[3] w = {1, 2, 3}"),
    "constant": summed("float[3] x", f"w = Constant <value = float[3] {{1, 2, 3}}> () {SCALE}"),
    "constant-floats": summed("float[3] x", f"w = Constant <value_floats = [1.0, 2.0, 3.0]> () {SCALE}"),
}


@pytest.mark.parametrize("kind", SCALED)
def test_wrt(kind):
    training = differentiated(SCALED[kind], wrt=["w"])
    assert [value.name for value in training.graph.inputs] == ["x", "w"]
    lowered = in_standard_onnx(training)
    run = session(lowered, "function")
    feeds = {"x": X, "w": np.ones(3, np.float32)}
    loss, gradient = run.run(["loss", "w_grad"], feeds)
    assert loss == X.sum()
    np.testing.assert_array_equal(gradient, X)
    if kind != "input":
        assert run.run(["loss"], {"x": X})[0] == (X * [1, 2, 3]).sum()


WITH_EXPONENT_AND_LIMITS = summed(
    "float[N, 3] x",
    "a = Mul(x, w) b = Pow(a, two) y = Clip(b, low, high)",
    initializers="float[3] w = {1, 2, 3}, float two = {2}, float low = {0}, float high = {6}",
)
ONE_HOT = summed(
    "float[N, 3] x, int64[N] l",
    "h = MatMul(x, w) t = OneHot(l, depth, values) y = Mul(t, h)",
    initializers="float[3, 3] w = {1, 0, 0, 0, 1, 0, 0, 0, 1}, int64 depth = {3}, float[2] values = {0, 1}",
)
SQUARE = "float[3, 3] w = {1, 0, 0, 0, 1, 0, 0, 0, 1}"
# name: (model, options, the outputs of its training graph)
OUTPUTS = {
    "initializers": (
        summed("float[N, 3] x", SCALE, initializers="float[3] w = {1, 2, 3}"),
        {},
        ["loss", "w_grad"],
    ),
    "weights that are inputs": (
        summed(
            "float[N, 2, 5, 5] x, float[4, 2, 3, 3] w, float[4] b, float[4, 2] m",
            "c = Conv(x, w, b) p = GlobalAveragePool(c) f = Flatten(p) y = MatMul(f, m)",
        ),
        {},
        ["loss", "w_grad", "b_grad", "m_grad"],
    ),
    "no data of fixed shape": (summed("float[2, 3] x, float[3, 3] w", "y = MatMul(x, w)"), {}, ["loss", "w_grad"]),
    "no angles": (
        summed(
            "float[1, 1, 2, 2] x, int64[1, 2] ids",
            "h = MatMul(x, w) y = RotaryEmbedding(h, c, s, ids)",
            initializers="float[2, 2] w = {1, 2, 3, 4}, float[2, 1] c = {1, 0}, float[2, 1] s = {0, 1}",
            opset=23,
        ),
        {},
        ["loss", "w_grad"],
    ),
    "no exponent, no limits": (WITH_EXPONENT_AND_LIMITS, {}, ["loss", "w_grad"]),
    "no statistics": (
        summed(
            "float[N, 2] x",
            "m = Mul(m0, factor) i = Identity(v0) y = BatchNormalization(x, s, b, m, i)",
            initializers="float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] m0 = {3, 4}, float[2] v0 = {1, 1}, "
            "float[2] factor = {0.5, 0.5}",
        ),
        {},
        ["loss", "s_grad", "b_grad"],
    ),
    "no statistics that the loss reads": (
        summed(
            "float[N, 2] x",
            "z, m1, v1 = BatchNormalization <training_mode = 1> (x, s, b, m, v) a = Add(m1, v1) y = Mul(z, a)",
            initializers="float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] m = {3, 4}, float[2] v = {1, 1}",
        ),
        {},
        ["loss", "m1", "v1", "s_grad", "b_grad"],
    ),
    "statistics that are asked for": (
        summed(
            "float[N, 2] x",
            "y = BatchNormalization(x, s, b, m, v)",
            initializers="float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] m = {3, 4}, float[2] v = {1, 1}",
        ),
        {"wrt": ["m", "v"]},
        ["loss", "m_grad", "v_grad"],
    ),
    "no values of one-hot labels": (ONE_HOT, {}, ["loss", "w_grad"]),
    "values of one-hot labels that are asked for": (ONE_HOT, {"wrt": ["values"]}, ["loss", "values_grad"]),
    "no weights of classes, no value of a pad, no start and step": (
        model(
            "float[N, 3] x, int64[N] l",
            """h = Mul(x, w) p = Pad(h, pads, value) r = Range(start, end, step) y = Mul(p, r)
            loss = SoftmaxCrossEntropyLoss(y, l, classes)""",
            initializers="float[3] w = {1, 2, 3}, int64[4] pads = {0, 0, 0, 1}, float value = {0.5}, "
            "float start = {0}, float end = {4}, float step = {1}, float[4] classes = {1, 2, 3, 4}",
        ),
        {},
        ["loss", "w_grad"],
    ),
    "no constants": (
        summed(
            "float[N, 3] x",
            "c = Constant <value_float = 2.0> () a = Mul(x, w) y = Mul(a, c)",
            initializers="float[3] w = {1, 2, 3}",
        ),
        {},
        ["loss", "w_grad"],
    ),
    "no integers": (
        summed(
            "float[4, 3] x",
            "a = Mul(x, w) y = Gather(a, i)",
            initializers="float[3] w = {1, 2, 3}, int64[2] i = {0, 2}",
        ),
        {},
        ["loss", "w_grad"],
    ),
    "nothing that comes through integers": (
        summed(
            "float[4, 3] x",
            "a = Mul(x, w) t = Mul(x, v) i = Cast <to = 7> (t) f = Cast <to = 1> (i) y = Mul(a, f)",
            initializers="float[3] w = {1, 2, 3}, float[3] v = {1, 2, 3}",
        ),
        {},
        ["loss", "w_grad"],
    ),
    "nothing beside the loss": (
        summed(
            "float[N, 3] x",
            f"other = Mul(x, v) {SCALE}",
            initializers="float[3] w = {1, 2, 3}, float[3] v = {1, 2, 3}",
            outputs="float loss, float[N, 3] other",
        ),
        {},
        ["loss", "other", "w_grad"],
    ),
    "an inner loss becomes an output": (
        model("float[3] x", TWO, outputs="float[3] y"),
        {"loss": "other", "wrt": ["x"]},
        ["y", "other", "x_grad"],
    ),
    "no values of OneHot": (
        summed(
            "float[N, 3] x, int64[N] l",
            "h = MatMul (x, w) t = OneHot (l, depth, values) p = LogSoftmax (h) y = Mul (t, p)",
            initializers=f"{SQUARE}, float[2] values = {{0, 1}}, int64 depth = {{3}}",
        ),
        {},
        ["loss", "w_grad"],
    ),
    "no class weights, no ratio": (
        model(
            "float[N, 3] x, int64[N] l",
            "h = MatMul (x, w) d = Dropout (h, ratio) loss = SoftmaxCrossEntropyLoss (d, l, c)",
            initializers=f"{SQUARE}, float[3] c = {{1, 2, 3}}, float ratio = {{0.5}}",
        ),
        {},
        ["loss", "w_grad"],
    ),
    "no exponent in another type": (
        summed(
            "float[N, 3] x",
            "a = Mul (x, w) e = Cast <to = 1> (two) y = Pow (a, e)",
            initializers="float[3] w = {1, 2, 3}, double two = {2}",
        ),
        {},
        ["loss", "w_grad"],
    ),
    "an exponent that is a factor, too": (
        summed("float[N, 3] x", "a = Mul (x, two) y = Pow (a, two)", initializers="float two = {2}"),
        {},
        ["loss", "two_grad"],
    ),
    "an exponent and a limit that are asked for": (
        WITH_EXPONENT_AND_LIMITS,
        {"wrt": ["two", "high"]},
        ["loss", "two_grad", "high_grad"],
    ),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs(name):
    forward, options, want = OUTPUTS[name]
    assert output_names(differentiated(forward, **options)) == want


ONE_CHANNEL = "float[1] s = {2}, float[1] b = {1}, float[1] m = {0}, float[1] v = {1}"
BN = "y, m_new, v_new = BatchNormalization <training_mode = 1> (x, s, b, m, v)"
STATISTICS = "float[1] m_new, float[1] v_new"
ACCURACY = """top = ArgMax <axis = 1, keepdims = 0> (y) hit = Equal (top, l) each = Cast <to = 1> (hit)
    accuracy = ReduceMean <keepdims = 0> (each)"""
# name: (model, its loss)
FOUND_LOSSES = {
    "statistics that are no outputs": (summed("float[N, 1] x", BN, initializers=ONE_CHANNEL), "loss"),
    "statistics that are outputs": (
        summed("float[N, 1] x", BN, initializers=ONE_CHANNEL, outputs=f"float loss, {STATISTICS}"),
        "loss",
    ),
    "statistics by Identity": (
        summed(
            "float[N, 1] x",
            f"{BN} m_out = Identity (m_new)",
            initializers=ONE_CHANNEL,
            outputs="float[1] m_out, float loss",
        ),
        "loss",
    ),
    "statistics of a frozen batch norm before opset 14": (
        summed(
            "float[N, 1] x",
            "y = BatchNormalization (x, s, b, m, v) m_out = Identity (m)",
            initializers=ONE_CHANNEL,
            outputs="float loss, float[1] m_out",
            opset=13,
        ),
        "loss",
    ),
    "a loss of shape [1]": (
        model(
            "float[N, 1] x",
            f"{BN} {SUM} r = Constant <value_ints = [1]> () total = Reshape (loss, r)",
            initializers=ONE_CHANNEL,
            outputs="float[1] total",
        ),
        "total",
    ),
    "an accuracy": (
        summed(
            "float[N, 3] x, int64[N] l",
            f"y = Mul (x, w) {ACCURACY}",
            initializers="float[3] w = {1, 2, 3}",
            outputs="float accuracy, float loss",
        ),
        "loss",
    ),
    "a constant": (
        summed(
            "float[3] x, float rate",
            "y = Mul (x, w) c = Constant <value_float = 2.0> () passed = Identity (rate)",
            initializers="float[3] w = {1, 2, 3}",
            outputs="float c, float passed, float loss",
        ),
        "loss",
    ),
    "a count": (
        summed("float[3] x", "y = Mul (x, w) n = Size (y)", initializers="float[3] w = {1, 2, 3}",
               outputs="int64 n, float loss"),
        "loss",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND_LOSSES)
def test_the_loss_is_found(name):
    forward, want = FOUND_LOSSES[name]
    training = training_graph(ir.from_proto(forward))
    assert training.loss == want
    assert training.gradients


# name: (model, options, a part of the message)
BY_W, BY_X = "--wrt (wrt=): 'w'", "--wrt (wrt=): 'x'"
NO_WEIGHTS = "loss 'loss' depends on no weights, which are float initializers"
ERRORS = {
    "loss-none": (
        model("float[3] x", "y = Exp(x)", outputs="float[3] y"),
        {"wrt": ["x"]},
        (
            "the model has no float scalar outputs; name the loss with --loss, or append one with "
            "--loss-fn (loss_fn=) (its float outputs are 'y' (float[3]))"
        ),
    ),
    "loss-no-float": (
        model("float[3] x", "s = Size(x)", outputs="int64 s"),
        {"wrt": ["x"]},
        (
            "the model has no float scalar outputs; name the loss with --loss, or append one with "
            "--loss-fn (loss_fn=) (its float outputs are none)"
        ),
    ),
    "loss-none-but-statistics": (
        summed("float[N, 1] x", BN, initializers=ONE_CHANNEL, outputs=STATISTICS),
        {},
        (
            "the model has no float scalar outputs; name the loss with --loss, or append one with "
            "--loss-fn (loss_fn=) (its float outputs are 'm_new' "
            "(float[1]), 'v_new' (float[1]))"
        ),
    ),
    "loss-none-of-accuracies": (
        summed(
            "float[N, 3] x, int64[N] l",
            f"y = Mul (x, x) {ACCURACY} other = Neg (accuracy)",
            outputs="float accuracy, float other",
        ),
        {"wrt": ["x"]},
        (
            "the model has 2 float scalar outputs; name the loss with --loss (its float outputs are 'accuracy' "
            "(float[]), 'other' (float[]))"
        ),
    ),
    "loss-two": (
        TWO_LOSSES,
        {"wrt": ["x"]},
        (
            "the model has 2 float scalar outputs; name the loss with --loss (its float outputs are 'loss' "
            "(float[]), 'other' (float[]), 'y' (float[3]))"
        ),
    ),
    "loss-input": (
        TWO_LOSSES,
        {"loss": "x", "wrt": ["x"]},
        "loss 'x' is an input of the graph, so it depends on nothing; name an output",
    ),
    "loss-unknown": (
        TWO_LOSSES,
        {"loss": "lose", "wrt": ["x"]},
        "'lose' is not a value of this model; did you mean 'loss'?",
    ),
    "loss-vector": (
        TWO_LOSSES,
        {"loss": "y", "wrt": ["x"]},
        "loss 'y' (float[3]) is not a float scalar; expected one element: reduce it to its mean or its sum",
    ),
    "loss-integer": (
        model("float[3] x", f"y = Exp(x) {SUM} s = Size(x)", outputs="int64 s"),
        {"loss": "s", "wrt": ["x"]},
        "loss 's' (int64[]) is not a float scalar; expected one element: reduce it to its mean or its sum",
    ),
    "wrt-unknown": (
        SCALED["input"],
        {"wrt": ["weight"]},
        "'weight' is not an input or initializer of this model, which has 'w' and 'x'",
    ),
    "wrt-misspelled": (
        summed("float[3] x, float[3] weight", "y = Mul(x, weight)"),
        {"wrt": ["wieght"]},
        "'wieght' is not an input or initializer of this model; did you mean 'weight'?",
    ),
    "wrt-integer": (
        summed("float[3] x, int64[2] i", "y = Gather(x, i)"),
        {"wrt": ["i"]},
        "'i' (int64[2]) has no gradient; expected a float",
    ),
    "wrt-computed": (
        summed("float[3] x", "h = Exp(x) y = Neg(h)"),
        {"wrt": ["h"]},
        "'h' is computed by the model; differentiate with respect to inputs and initializers",
    ),
    "wrt-computed-in-a-branch": (
        summed("float[3] x, bool c", BRANCHES),
        {"wrt": ["p"]},
        "'p' is computed by the model; differentiate with respect to inputs and initializers",
    ),
    "wrt-running-statistic": (
        summed(
            "float[N, 2] x, float[2] s, float[2] b, float[2] m, float[2] v",
            "y, m1, v1 = BatchNormalization <training_mode = 1> (x, s, b, m, v)",
        ),
        {"wrt": ["m"]},
        (
            "the loss 'loss' does not depend on 'm' in a way that has a gradient: it is a running statistic of "
            "batch norm 'y', which is in training mode"
        ),
    ),
    "wrt-limit": (
        summed("float[3] x, float l, float d", "s = ReduceMin <keepdims = 0> (x) y = Range(s, l, d)"),
        {"wrt": ["l"]},
        "loss 'loss' does not depend on 'l': Range node 'y' (outputs y) gives input 1 no gradient",
    ),
    "wrt-steps": (
        summed("float[3] x, float[3] z", "r = Round(z) y = Mul(x, r)"),
        {"wrt": ["z"]},
        "loss 'loss' does not depend on 'z': Round node 'r' (outputs r) gives input 0 no gradient",
    ),
    "wrt-steps-of-a-product": (
        summed("float[3] x, float[3] z", "p = Mul(x, z) n = Neg(p) r = Sign(n) y = Mul(x, r)"),
        {"wrt": ["z"]},
        "loss 'loss' does not depend on 'z': Sign node 'r' (outputs r) gives input 0 no gradient",
    ),
    "wrt-statistic-of-a-product": (
        summed(
            "float[N, 2] x, float[2] s, float[2] b, float[2] m, float[2] v",
            "d = Add(m, m) y, m1, v1 = BatchNormalization <training_mode = 1> (x, s, b, d, v)",
        ),
        {"wrt": ["m"]},
        "the loss 'loss' does not depend on 'm' in a way that has a gradient",
    ),
    "wrt-not-reaching": (
        summed("float[3] x, float[3] z", "other = Exp(z) y = Exp(x)"),
        {"wrt": ["x", "z"]},
        "loss 'loss' does not depend on 'z'",
    ),
    "wrt-not-read": (
        summed("float[3] x, float[3] z", "y = Exp(x)"),
        {"wrt": ["z"]},
        "loss 'loss' does not depend on 'z'",
    ),
    "wrt-through-integers": (
        summed("float[3] x", "i = Cast <to = 7> (x) y = Cast <to = 1> (i)"),
        {"wrt": ["x"]},
        "loss 'loss' does not depend on 'x'",
    ),
    "wrt-condition": (
        summed("float[3] x, float[3] z", "c = Greater(z, x) y = Where(c, x, x)"),
        {"wrt": ["z"]},
        "loss 'loss' does not depend on 'z': Greater node 'c' (outputs c) gives input 0 no gradient",
    ),
    "wrt-no-weights": (
        summed("float[N, 3] x, float[N, 3] z", "y = Mul(x, z)"),
        {},
        f"{NO_WEIGHTS}; for gradients of inputs, differentiate takes --wrt (wrt=): 'x' and 'z'",
    ),
    "wrt-constants-alone": (
        summed("float[N, 3] x, int64[N] i", "w = Constant <value = float[3] {1, 2, 3}> () y = Mul(x, w)"),
        {},
        f"{NO_WEIGHTS}; name what to train with {BY_W}; for gradients of inputs, differentiate takes {BY_X}",
    ),
    "wrt-constants-of-integers": (
        summed("int64[N] i", "w = Constant <value = float[3] {1, 2, 3}> () c = Cast <to = 1> (i) y = Mul(c, w)"),
        {},
        f"{NO_WEIGHTS}; name what to train with --wrt (wrt=): 'w'",
    ),
    "wrt-nothing": (
        summed("int64[N, 3] x", "y = Cast <to = 1> (x)"),
        {},
        f"{NO_WEIGHTS}, nor on a float input or constant",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    forward, options, message = ERRORS[name]
    with pytest.raises(ModelError, match=f"^{re.escape(message)}$"):
        differentiated(forward, **options)
