"""Elements that are cut off where a local derivative is infinite or NaN: their gradient is 0, others are right.

Central differences agree: the loss does not depend on elements that are cut off.
"""

from __future__ import annotations

import numpy as np
import pytest

from autodiff.gradient_cases import Case, feeds_of, fixed, in_standard_onnx, lowered
from autodiff.gradient_checks import CheckedCase, check_gradients, on_stock
from autodiff.small_models import differentiated, summed
from bngrad.runtime.session import session
from bngrad.validation.float64 import evaluate

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

INF = float("inf")


def where(name, nodes, x, kept, *, inputs="float[4] x", **more):
    """z = f(x), of which a Where keeps some elements."""
    draw = {"x": fixed(*x), "c": fixed(*kept), **more.pop("draw", {})}
    body = f"{nodes} n = Constant <value_float = 0.0> () y = Where (c, z, n)"
    condition = f"bool[{', '.join(map(str, np.shape(kept)))}] c"
    return Case(name, f"{inputs}, {condition}", body, dims=({},), draw=draw, **more)


def behind(name, nodes, x, *, inputs="float[4] x", **more):
    """A singular op that reads what another one cuts off."""
    return Case(name, inputs, nodes, dims=({},), draw={"x": fixed(*x), **more.pop("draw", {})}, **more)


KEPT = (True, True, False, False)
SINGULAR = (0.5, 2.0, 0.0, 0.0)
CUT_OFF = [
    where("sqrt", "z = Sqrt (x)", (0.5, 2, 0, -1), KEPT),
    where("log", "z = Log (x)", (0.5, 2, 0, -1), KEPT),
    where("reciprocal", "z = Reciprocal (x)", SINGULAR, KEPT),
    where("exp", "z = Exp (x)", (0.5, 2, 1000, INF), KEPT),
    where("sinh", "z = Sinh (x)", (0.5, 2, 1000, INF), KEPT),
    where("cosh", "z = Cosh (x)", (0.5, 2, 1000, INF), KEPT),
    where("asin", "z = Asin (x)", (0.5, -0.9, 1, 2), KEPT),
    where("acos", "z = Acos (x)", (0.5, -0.9, -1, 2), KEPT),
    where("acosh", "z = Acosh (x)", (1.5, 4, 1, -2), KEPT),
    where("atanh", "z = Atanh (x)", (0.5, -0.9, 1, -1), KEPT),
    where(
        "mod",
        "z = Mod <fmod = 1> (x, d)",
        (0.5, 2, 1, 3),
        KEPT,
        inputs="float[4] x, float[4] d",
        draw={"d": fixed(0.3, 0.9, 0, 0)},
        wrt=("x", "d"),
    ),
    where("div", "o = Constant <value_float = 1.5> () z = Div (o, x)", SINGULAR, KEPT),
    where(
        "div, the dividend",
        "z = Div (x, d)",
        (0.5, 2, 0, 3),
        KEPT,
        inputs="float[4] x, float[4] d",
        draw={"d": fixed(1, 2, 0, 0)},
    ),
    where(
        "div, both",
        "z = Div (x, d)",
        (0.5, 2, 0, 3),
        KEPT,
        inputs="float[4] x, float[4] d",
        draw={"d": fixed(1, 2, 0, 0)},
        wrt=("x", "d"),
    ),
    where(
        "div, broadcast",
        "z = Div (d, x)",
        SINGULAR,
        ((True, True, False, False),) * 2,
        inputs="float[4] x, float[2, 4] d",
        wrt=("x", "d"),
    ),
    where("square root as a power", "p = Constant <value_float = 0.5> () z = Pow (x, p)", (0.5, 2, 0, -1), KEPT),
    where("inverse as a power", "p = Constant <value_float = -1.0> () z = Pow (x, p)", SINGULAR, KEPT),
    where(
        "powers",
        "z = Pow (x, p)",
        (0.5, 2, 0, -1),
        KEPT,
        inputs="float[4] x, float[4] p",
        draw={"p": fixed(0.5, -2, -0.5, 0.5)},
        wrt=("x", "p"),
    ),
    where(
        "product with a reciprocal",
        "r = Reciprocal (d) z = Mul (x, r)",
        (0.5, 2, 0, 3),
        KEPT,
        inputs="float[4] x, float[4] d",
        draw={"d": fixed(1, 2, 0, 0)},
        wrt=("x", "d"),
    ),
    where(
        "product with an exponential",
        "r = Exp (d) z = Mul (x, r)",
        (0.5, 2, 0, 3),
        KEPT,
        inputs="float[4] x, float[4] d",
        draw={"d": fixed(1, 2, 1000, 1000)},
        wrt=("x", "d"),
    ),
    where("gelu", "z = Gelu (x)", (0.5, -2, INF, -INF), KEPT, opset=20),
    where("gelu by tanh", 'z = Gelu <approximate = "tanh"> (x)', (0.5, -2, INF, -INF), KEPT, opset=20),
    where("mish", "z = Mish (x)", (0.5, -2, INF, -INF), KEPT),
    where("quick gelu", "z = com.microsoft.QuickGelu (x)", (0.5, -2, INF, -INF), KEPT),
    where("swish", "z = Swish (x)", (0.5, -2, INF, -INF), KEPT, opset=24),
    where("hard swish", "z = HardSwish (x)", (0.5, -2, INF, -INF), KEPT),
    where("softsign", "z = Softsign (x)", (0.5, -2, 3e38, -INF), KEPT),
    where("softplus", "z = Softplus (x)", (0.5, -2, INF, -INF), KEPT),
    where("elu", "z = Elu (x)", (0.5, -2, INF, -INF), KEPT),
    where("selu", "z = Selu (x)", (0.5, -2, INF, -INF), KEPT),
    where("celu", "z = Celu (x)", (0.5, -2, INF, -INF), KEPT),
    where("erf", "z = Erf (x)", (0.5, -2, 3e38, -INF), KEPT),
    where("maximum of a logarithm", "l = Log (x) z = Max (l, x)", (0.5, 2, 0, -1), KEPT),
]
ROWS = ((True,), (False,))
SCORES = (((0.5, -2, 1), (-INF, -INF, -INF)),)
OF_ROWS = [
    where("softmax", "z = Softmax (x)", *SCORES, ROWS, inputs="float[2, 3] x"),
    where(
        "softmax of a sum",
        "m = Add (x, b) z = Softmax (m)",
        ((0.5, -2, 1), (1, 2, 3)),
        ROWS,
        inputs="float[2, 3] x, float[2, 3] b",
        draw={"b": fixed((0, -INF, 0), (-INF,) * 3)},
    ),
    where("log softmax", "z = LogSoftmax (x)", *SCORES, ROWS, inputs="float[2, 3] x"),
    where(
        "log sum exp",
        "z = ReduceLogSumExp (x, a)",
        *SCORES,
        ROWS,
        inputs="float[2, 3] x",
        initializers="int64[1] a = {1}",
    ),
    where(
        "log sum",
        "z = ReduceLogSum (x, a)",
        ((0.5, 2, 1), (0, 0, 0)),
        ROWS,
        inputs="float[2, 3] x",
        initializers="int64[1] a = {1}",
    ),
    where(
        "log sum without keepdims",
        "z = ReduceLogSum <keepdims = 0> (x, a)",
        ((0.5, 2, 1), (0, 0, 0)),
        (True, False),
        inputs="float[2, 3] x",
        initializers="int64[1] a = {1}",
    ),
    where(
        "l2",
        "z = ReduceL2 (x, a)",
        ((0.5, -2, 1), (0, 0, 0)),
        ROWS,
        inputs="float[2, 3] x",
        initializers="int64[1] a = {1}",
    ),
    where(
        "product",
        "z = ReduceProd (x, a)",
        ((0.5, -2, 1), (1e30, 1e30, 1e30)),
        ROWS,
        inputs="float[2, 3] x",
        initializers="int64[1] a = {1}",
    ),
    where(
        "maximum of logarithms",
        "l = Log (x) z = ReduceMax (l, a)",
        ((0.5, 2, 1), (-1, -1, -1)),
        ROWS,
        inputs="float[2, 3] x",
        initializers="int64[1] a = {1}",
    ),
    where(
        "length",
        "z = LpNormalization (x)",
        ((0.5, -2, 1), (0, 0, 0)),
        ((True,) * 3, (False,) * 3),
        inputs="float[2, 3] x",
    ),
]
LOSSES = [
    Case(
        "ignored labels",
        "float[3, 2] x, int64[3] l",
        "y = SoftmaxCrossEntropyLoss <ignore_index = -1> (x, l)",
        dims=({},),
        draw={"x": fixed((0.5, -2), (-INF, -INF), (1, 2)), "l": fixed(1, -1, 0)},
    ),
    Case(
        "a class without weight",
        "float[3, 2] x, int64[3] l, float[2] w",
        "y = SoftmaxCrossEntropyLoss (x, l, w)",
        dims=({},),
        draw={"x": fixed((0.5, -2), (-INF, -INF), (1, 2)), "l": fixed(1, 0, 1), "w": fixed(0, 2)},
    ),
    Case(
        "losses that are cut off",
        "float[3, 2] x, int64[3] l, bool[3] c",
        'z = SoftmaxCrossEntropyLoss <reduction = "none"> (x, l) '
        "n = Constant <value_float = 0.0> () y = Where (c, z, n)",
        dims=({},),
        draw={"x": fixed((0.5, -2), (-INF, -INF), (1, 2)), "l": fixed(1, 0, 1), "c": fixed(True, False, True)},
    ),
]
HALF = "lo = Constant <value_float = 0.0> () hi = Constant <value_float = 1.0> ()"
THEN_ROOT = "y = Sqrt (t)"
BEHIND = [
    behind("relu", f"t = Relu (x) {THEN_ROOT}", (0.5, 2, -1, -3)),
    behind(
        "relu, logarithm of a sum",
        "t = Relu (x) k = Constant <value_ints = [1]> () s = ReduceSum (t, k) "
        "n = Constant <value_float = 0.0> () z = Sqrt (s) y = Max (z, n)",
        ((0.5, 2), (-1, -3)),
        inputs="float[2, 2] x",
    ),
    behind("clip", f"{HALF} t = Clip (x, lo, hi) {THEN_ROOT}", (0.25, 2, -1, 0.5)),
    behind(
        "clip, its limit",
        f"t = Clip (x, lo) {THEN_ROOT}",
        (0.25, 2, 1, 0.5),
        inputs="float[4] x, float lo",
        draw={"lo": lambda _rng, _shape: 0.125},
        wrt=("x", "lo"),
    ),
    behind("minimum", f"{HALF} s = Max (x, lo) t = Min (s, hi) {THEN_ROOT}", (0.25, 2, -1, 0.5)),
    behind("hard sigmoid", f"t = HardSigmoid (x) {THEN_ROOT}", (0.25, 2, -9, 0.5)),
    behind("hard swish", f"s = HardSwish (x) t = Abs (s) {THEN_ROOT}", (0.25, 2, -9, 0.5)),
    behind("thresholded relu", f"t = ThresholdedRelu (x) {THEN_ROOT}", (1.5, 2, -1, 0.5)),
    behind("leaky relu without leak", f"t = LeakyRelu <alpha = 0.0> (x) {THEN_ROOT}", (1.5, 2, -1, -0.5)),
    behind(
        "prelu without slope",
        f"t = PRelu (x, s) {THEN_ROOT}",
        (1.5, 2, -1, -0.5),
        inputs="float[4] x, float[1] s",
        draw={"s": fixed(0)},
    ),
    behind(
        "mask as a product",
        f"t = Mul (x, m) {THEN_ROOT}",
        (0.5, 2, 1, 3),
        inputs="float[4] x, float[4] m",
        draw={"m": fixed(1, 1, 0, 0)},
    ),
    behind(
        "reciprocal behind a mask",
        "m = Mul (x, k) r = Reciprocal (m) n = Constant <value_float = 9.0> () y = Min (r, n)",
        (0.5, 2, 1, 3),
        inputs="float[4] x, float[4] k",
        draw={"k": fixed(1, 1, 0, 0)},
    ),
    behind(
        "maximum",
        "k = Constant <value_ints = [1]> () s = ReduceMax (x, k) z = Sqrt (s) y = Mul (z, z)",
        ((0.5, 2), (1, 3)),
        inputs="float[2, 2] x",
    ),
]


@pytest.mark.parametrize("case", [*CUT_OFF, *OF_ROWS, *BEHIND], ids=str)
def test_what_is_cut_off_has_no_gradient(case):
    check_gradients(case, {})


@pytest.mark.parametrize("case", LOSSES, ids=str)
def test_samples_without_weight(case):
    """They read only -inf; such a loss is NaN in onnx's evaluator, and ONNX Runtime leaves it out."""
    feeds = feeds_of(case, {})
    feeds["y_weight"] = np.ones_like(feeds["y_weight"])
    (gradient,) = evaluate(lowered(case), feeds, case.gradients).values()
    assert np.isfinite(gradient).all()
    assert (gradient[1] == 0).all()
    CheckedCase(case).run(on_stock, {})


def test_dropout():
    """Dropped elements are 0, where the root after them has no derivative."""
    forward = summed(
        "float[64] x",
        "r = Constant <value_float = 0.5> () o = Constant <value_float = 1.0> () b = Cast <to = 9> (o) "
        "t, m = Dropout <seed = 1> (x, r, b) y = Sqrt (t)",
        outputs="float loss, float[64] t",
    )
    training = in_standard_onnx(differentiated(forward, wrt=["x"]))
    feeds = {"x": np.full(64, 2, np.float32)}
    t, gradient = session(training, "function").run(["t", "x_grad"], feeds)
    assert ((t == 0) == (gradient == 0)).all()
    assert (t == 0).any()
    np.testing.assert_allclose(gradient[t != 0], 0.5, rtol=1e-6)
