"""What is differentiated, and by what: names, defaults, and errors."""

from __future__ import annotations

import re

import numpy as np
import pytest

from autodiff.gradient_cases import in_standard_onnx
from autodiff.small_models import BRANCHES, SUM, X, differentiated, gradients, model, output_names
from bngrad.errors import ModelError
from bngrad.runtime import session

TWO = f"y = Exp(x) {SUM} other = ReduceMean <keepdims = 0> (y)"
TWO_LOSSES = model("float[3] x", TWO, outputs="float loss, float other, float[3] y")


@pytest.mark.parametrize(("loss", "scale"), [("loss", 1), ("other", 1 / 3)])
def test_choice_of_loss(loss, scale):
    result = gradients(TWO_LOSSES, {"x": X}, loss=loss, wrt=["x"])
    np.testing.assert_allclose(result["x_grad"], scale * np.exp(X), rtol=1e-6)


def test_an_inner_loss_becomes_an_output():
    forward = model("float[3] x", TWO, outputs="float[3] y")
    assert output_names(differentiated(forward, loss="other", wrt=["x"])) == ["y", "other", "x_grad"]


@pytest.mark.parametrize("shape", ["", "[1]", "[1, 1]"])
def test_a_loss_of_one_element(shape):
    forward = model("float[1, 1] x, int64[R] r", "h = Exp(x) loss = Reshape(h, r)", outputs=f"float{shape} loss")
    rank = len(shape.split(",")) if shape else 0
    feeds = {"x": np.array([[0.5]], np.float32), "r": np.ones(rank, np.int64)}
    np.testing.assert_allclose(gradients(forward, feeds, wrt=["x"])["x_grad"], [[np.exp(0.5)]])


def test_a_loss_that_is_read_further():
    forward = model("float[3] x", f"y = Exp(x) {SUM} z = Sqrt(loss)", outputs="float loss, float z")
    np.testing.assert_allclose(
        gradients(forward, {"x": X}, loss="loss", wrt=["x"])["x_grad"], np.exp(X), rtol=1e-6
    )


LOSS_ERRORS = {
    "none": (
        model("float[3] x", "y = Exp(x)", outputs="float[3] y"),
        None,
        "the model has no float scalar outputs; name the loss with --loss (its float outputs are 'y' (float[3]))",
    ),
    "no-float": (
        model("float[3] x", "s = Size(x)", outputs="int64 s"),
        None,
        "the model has no float scalar outputs; name the loss with --loss (its float outputs are none)",
    ),
    "two": (
        TWO_LOSSES,
        None,
        (
            "the model has 2 float scalar outputs; name the loss with --loss (its float outputs are 'loss' "
            "(float[]), 'other' (float[]), 'y' (float[3]))"
        ),
    ),
    "input": (TWO_LOSSES, "x", "loss 'x' is an input of the graph, so it depends on nothing; name an output"),
    "unknown": (TWO_LOSSES, "lose", "'lose' is not a value of this model; did you mean 'loss'?"),
    "vector": (
        TWO_LOSSES,
        "y",
        "loss 'y' (float[3]) is no float scalar; expected one element: reduce it to its mean or its sum",
    ),
    "integer": (
        model("float[3] x", f"y = Exp(x) {SUM} s = Size(x)", outputs="int64 s"),
        "s",
        "loss 's' (int64[]) is no float scalar; expected one element: reduce it to its mean or its sum",
    ),
}


@pytest.mark.parametrize("name", LOSS_ERRORS)
def test_loss_errors(name):
    forward, loss, message = LOSS_ERRORS[name]
    with pytest.raises(ModelError, match=f"^{re.escape(message)}$"):
        differentiated(forward, loss=loss, wrt=["x"])


SCALE = f"y = Mul(x, w) {SUM}"
SCALED = {
    "input": model("float[3] x, float[3] w", SCALE),
    "initializer": model("float[3] x", SCALE, initializers="float[3] w = {1, 2, 3}"),
    "constant": model("float[3] x", f"w = Constant <value = float[3] {{1, 2, 3}}> () {SCALE}"),
    "constant-floats": model("float[3] x", f"w = Constant <value_floats = [1.0, 2.0, 3.0]> () {SCALE}"),
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


DEFAULTS = {
    "initializers": (model("float[N, 3] x", SCALE, initializers="float[3] w = {1, 2, 3}"), ["w"]),
    "weights that are inputs": (
        model(
            "float[N, 2, 5, 5] x, float[4, 2, 3, 3] w, float[4] b, float[4, 2] m",
            f"c = Conv(x, w, b) p = GlobalAveragePool(c) f = Flatten(p) y = MatMul(f, m) {SUM}",
        ),
        ["w", "b", "m"],
    ),
    "no data of fixed shape": (model("float[2, 3] x, float[3, 3] w", f"y = MatMul(x, w) {SUM}"), ["w"]),
    "no exponent, no limits": (
        model(
            "float[N, 3] x",
            f"a = Mul(x, w) b = Pow(a, two) y = Clip(b, low, high) {SUM}",
            initializers="float[3] w = {1, 2, 3}, float two = {2}, float low = {0}, float high = {6}",
        ),
        ["w"],
    ),
    "no constants": (
        model(
            "float[N, 3] x",
            f"c = Constant <value_float = 2.0> () a = Mul(x, w) y = Mul(a, c) {SUM}",
            initializers="float[3] w = {1, 2, 3}",
        ),
        ["w"],
    ),
    "no integers": (
        model(
            "float[4, 3] x",
            f"a = Mul(x, w) y = Gather(a, i) {SUM}",
            initializers="float[3] w = {1, 2, 3}, int64[2] i = {0, 2}",
        ),
        ["w"],
    ),
    "nothing that comes through integers": (
        model(
            "float[4, 3] x",
            f"a = Mul(x, w) t = Mul(x, v) i = Cast <to = 7> (t) f = Cast <to = 1> (i) y = Mul(a, f) {SUM}",
            initializers="float[3] w = {1, 2, 3}, float[3] v = {1, 2, 3}",
        ),
        ["w"],
    ),
    "nothing beside the loss": (
        model(
            "float[N, 3] x",
            f"other = Mul(x, v) {SCALE}",
            initializers="float[3] w = {1, 2, 3}, float[3] v = {1, 2, 3}",
            outputs="float loss, float[N, 3] other",
        ),
        ["w"],
    ),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_default_wrt(name):
    forward, want = DEFAULTS[name]
    made = [
        output.removesuffix("_grad")
        for output in output_names(differentiated(forward))
        if output.endswith("_grad")
    ]
    assert made == want


def test_exponents_and_limits_have_a_gradient_where_it_is_asked_for():
    training = differentiated(DEFAULTS["no exponent, no limits"][0], wrt=["two", "high"])
    assert output_names(training) == ["loss", "two_grad", "high_grad"]


BATCH_NORM = "y = BatchNormalization(x, s, b, m, v)"
BATCH_NORM_INPUTS = "float[N, 2] x, float[2] s, float[2] b, float[2] m, float[2] v"
WRT_ERRORS = {
    "unknown": (
        SCALED["input"],
        ["weight"],
        "'weight' is not an input or initializer of this model, which has 'w' and 'x'",
    ),
    "misspelled": (
        model("float[3] x, float[3] weight", f"y = Mul(x, weight) {SUM}"),
        ["wieght"],
        "'wieght' is not an input or initializer of this model; did you mean 'weight'?",
    ),
    "integer": (
        model("float[3] x, int64[2] i", f"y = Gather(x, i) {SUM}"),
        ["i"],
        "'i' (int64[2]) has no gradient; expected a float",
    ),
    "computed": (
        model("float[3] x", f"h = Exp(x) y = Neg(h) {SUM}"),
        ["h"],
        "'h' is computed by the model; differentiate by inputs and initializers",
    ),
    "computed-in-a-branch": (
        model("float[3] x, bool c", f"{BRANCHES} {SUM}"),
        ["p"],
        "'p' is computed by the model; differentiate by inputs and initializers",
    ),
    "running-statistic": (
        model(BATCH_NORM_INPUTS, f"{BATCH_NORM} {SUM}"),
        ["m"],
        "loss 'loss' does not depend on 'm': it is a running statistic of BatchNormalization node 'y' (outputs y)",
    ),
    "stop-edge": (
        model("float[3] x, float r", f"y = Dropout(x, r) {SUM}"),
        ["r"],
        "loss 'loss' does not depend on 'r': Dropout node 'y' (outputs y) gives input 1 no gradient",
    ),
    "steps": (
        model("float[3] x, float[3] z", f"r = Round(z) y = Mul(x, r) {SUM}"),
        ["z"],
        "loss 'loss' does not depend on 'z': Round node 'r' (outputs r) gives input 0 no gradient",
    ),
    "not-reaching": (
        model("float[3] x, float[3] z", f"other = Exp(z) y = Exp(x) {SUM}"),
        ["x", "z"],
        "loss 'loss' does not depend on 'z'",
    ),
    "not-read": (
        model("float[3] x, float[3] z", f"y = Exp(x) {SUM}"),
        ["z"],
        "loss 'loss' does not depend on 'z'",
    ),
    "through-integers": (
        model("float[3] x", f"i = Cast <to = 7> (x) y = Cast <to = 1> (i) {SUM}"),
        ["x"],
        "loss 'loss' does not depend on 'x'",
    ),
    "condition": (
        model("float[3] x, float[3] z", f"c = Greater(z, x) y = Where(c, x, x) {SUM}"),
        ["z"],
        "loss 'loss' does not depend on 'z'",
    ),
    "no-weights": (
        model("float[N, 3] x, float[N, 3] z", f"y = Mul(x, z) {SUM}"),
        None,
        "loss 'loss' depends on no weights; name what to differentiate by with --wrt (the inputs are 'x' and 'z')",
    ),
}


@pytest.mark.parametrize("name", WRT_ERRORS)
def test_wrt_errors(name):
    forward, wrt, message = WRT_ERRORS[name]
    with pytest.raises(ModelError, match=f"^{re.escape(message)}$"):
        differentiated(forward, wrt=wrt)


def test_stop_edges_carry_nothing():
    """x decides what is chosen, and is chosen: only the second counts."""
    forward = model("float[3] x", f"zero = Sub(x, x) c = Greater(x, zero) z = Exp(x) y = Where(c, x, z) {SUM}")
    want = np.where(X > 0, 1, np.exp(X))
    np.testing.assert_allclose(gradients(forward, {"x": X}, wrt=["x"])["x_grad"], want, rtol=1e-6)
