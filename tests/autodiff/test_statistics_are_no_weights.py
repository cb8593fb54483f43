"""Means and variances of batch norms in inference mode are never weights by default, however they are spelled."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from autodiff.small_models import differentiated, gradients, output_names, summed
from bngrad.autodiff.formula_numbers import formula_numbers

FOUR = "float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] m = {0.5, 1}, float[2] v = {1, 2}, float eps = {0.001}"
SD = "e = Add (v, eps) sd = Sqrt (e)"
SPELLED = {
    "an op": "y = BatchNormalization <epsilon = 0.001> (x, s, b, m, v)",
    "times the inverse": f"{SD} i = Reciprocal (sd) f = Mul (s, i) c = Sub (x, m) d = Mul (c, f) y = Add (d, b)",
    "inverse first": f"{SD} i = Reciprocal (sd) c = Sub (x, m) d = Mul (c, i) t = Mul (d, s) y = Add (t, b)",
    "divided by the deviation": f"{SD} c = Sub (x, m) d = Div (c, sd) t = Mul (d, s) y = Add (t, b)",
    "scale over deviation": f"{SD} f = Div (s, sd) c = Sub (x, m) d = Mul (f, c) y = Add (b, d)",
    "Keras": (
        f"{SD} i = Reciprocal (sd) f = Mul (i, s) p = Mul (x, f) q = Mul (m, f) t = Sub (b, q) y = Add (p, t)"
    ),
    "a power": (
        "e = Add (eps, v) h = Constant <value_float = -0.5> () i = Pow (e, h) f = Mul (s, i) c = Sub (x, m) "
        "d = Mul (c, f) y = Add (d, b)"
    ),
    "in other shapes": (
        f"a = Constant <value_ints = [0]> () {SD} i = Reciprocal (sd) f = Mul (s, i) g = Unsqueeze (f, a) "
        "n = Unsqueeze (m, a) c = Sub (x, n) d = Mul (c, g) o = Unsqueeze (b, a) y = Add (d, o)"
    ),
    "in another type": (
        "w = Cast <to = 11> (v) r = Cast <to = 11> (eps) e = Add (w, r) q = Sqrt (e) sd = Cast <to = 1> (q) "
        "c = Sub (x, m) d = Div (c, sd) t = Mul (d, s) y = Add (t, b)"
    ),
}


@pytest.mark.parametrize("how", SPELLED)
def test_scale_and_bias_are_the_weights(how, rng):
    """The four are the same batch norm, with the same gradients."""
    forward = summed("float[N, 2] x", SPELLED[how], initializers=FOUR)
    assert output_names(differentiated(forward)) == ["loss", "s_grad", "b_grad"]
    x = rng.standard_normal((5, 2)).astype(np.float32)
    got = gradients(forward, {"x": x})
    xhat = (x - [0.5, 1]) / np.sqrt(np.array([1, 2]) + 1e-3)
    np.testing.assert_allclose(got["s_grad"], xhat.sum(0), rtol=1e-6)
    np.testing.assert_allclose(got["b_grad"], [5, 5])


@pytest.mark.parametrize("how", [how for how in SPELLED if how != "an op"])
def test_a_statistic_that_is_asked_for(how):
    forward = summed("float[N, 2] x", SPELLED[how], initializers=FOUR)
    assert output_names(differentiated(forward, wrt=["m", "v"])) == ["loss", "m_grad", "v_grad"]


COMPUTED = {
    "a mean": "m0 = ReduceMean <axes = [0]> (x) c = Sub (x, m0) q = Mul (c, c) k = ReduceMean <axes = [0]> (q)",
    "a sum over N": (
        "a = Constant <value_ints = [0]> () t0 = ReduceSum (x, a) m0 = Div (t0, n) c = Sub (x, m0) q = Mul (c, c) "
        "t1 = ReduceSum (q, a) k = Div (t1, n)"
    ),
    "a sum times 1 / N": (
        "a = Constant <value_ints = [0]> () t0 = ReduceSum (x, a) m0 = Mul (t0, share) c = Sub (x, m0) "
        "q = Mul (x, x) t1 = ReduceSum (q, a) u = Mul (share, t1) mm = Mul (m0, m0) w = Sub (u, mm) "
        "k = Max (w, zero)"
    ),
}


@pytest.mark.parametrize("how", COMPUTED)
def test_the_numbers_of_computed_statistics_are_no_weights(how):
    body = f"{COMPUTED[how]} e = Add (k, eps) sd = Sqrt (e) d = Div (c, sd) t = Mul (d, s) y = Add (t, b)"
    numbers = {"eps": 0.001, "n": 6, "share": 0.16666667, "zero": 0}
    names = [name for name in numbers if re.search(rf"[(,] ?{name}[,)]", body)]
    initializers = ", ".join(
        ["float[2] s = {1, 2}", "float[2] b = {0, 1}", *(f"float {n} = {{{numbers[n]}}}" for n in names)]
    )
    training = differentiated(summed("float[6, 2] x", body, initializers=initializers))
    assert output_names(training) == ["loss", "s_grad", "b_grad"]
    assert "BatchNormalizationTraining" in str(training)


SCORES = "w = Softmax (t) u = MatMul (w, x) y = Mul (u, s)"
K = "k = Transpose (x)"
ERF, TANH = "e = Erf (a) g = Add (e, one)", "e = Tanh (a) g = Add (e, one)"
FORMULAS = {
    "attention, scores times a scale": f"{K} z = MatMul (x, k) t = Mul (z, root) {SCORES}",
    "attention, scores by a divisor": f"{K} z = MatMul (x, k) t = Div (z, width) {SCORES}",
    "attention with a mask": f"{K} z = MatMul (x, k) r = Mul (z, root) t = Add (r, z) {SCORES}",
    "attention, queries times a scale": f"q = Mul (x, root) {K} t = MatMul (q, k) {SCORES}",
    "attention, both times a root of it": (
        f"q = Mul (x, fourth) j = Mul (x, fourth) k = Transpose (j) t = MatMul (q, k) {SCORES}"
    ),
    "GELU": f"a = Div (x, two) {ERF} h = Mul (x, g) k = Mul (h, half) y = Mul (k, s)",
    "GELU, half first": f"a = Mul (x, less) {ERF} h = Mul (x, half) k = Mul (h, g) y = Mul (k, s)",
    "GELU by tanh": (
        f"c = Mul (x, x) d = Mul (c, x) f = Mul (d, cubic) l = Add (x, f) a = Mul (l, pi) {TANH} "
        "j = Mul (half, g) k = Mul (x, j) y = Mul (k, s)"
    ),
    "an epsilon of a logarithm": "a = Abs (x) e = Add (a, eps) l = Log (e) y = Mul (l, s)",
    "an epsilon of a fraction": "a = Abs (x) e = Add (a, eps) l = Div (x, e) y = Mul (l, s)",
    "the least divisor": "a = ReduceL2 (x) e = Max (a, eps) l = Div (x, e) y = Mul (l, s)",
}
NUMBERS = {
    "root": 64**-0.5,
    "fourth": 64**-0.25,
    "width": 8,
    "one": 1,
    "half": 0.5,
    "two": 2**0.5,
    "less": 0.5**0.5,
    "cubic": 0.044715,
    "pi": (2 / np.pi) ** 0.5,
    "eps": 1e-6,
}


def with_numbers(body, numbers):
    names = [name for name in numbers if re.search(rf"[(, ]{name}[,)]", body)]
    initializers = ", ".join(
        ["float[2] s = {1, 2}", *(f"float {name} = {{{numbers[name]:.9g}}}" for name in names)]
    )
    return summed("float[N, 2] x", body, initializers=initializers)


@pytest.mark.parametrize("how", FORMULAS)
def test_the_numbers_of_formulas_are_no_weights(how):
    assert output_names(differentiated(with_numbers(FORMULAS[how], NUMBERS))) == ["loss", "s_grad"]


NO_FORMULAS = {
    "a scale that is no root": (f"{K} z = MatMul (x, k) t = Mul (z, free) {SCORES}", "free_grad"),
    "a root without a softmax": (
        f"{K} z = MatMul (x, k) t = Mul (z, root) u = MatMul (t, x) y = Mul (u, s)",
        "root_grad",
    ),
    "a half without a gate": ("a = Mul (x, half) e = Erf (a) y = Mul (e, s)", "half_grad"),
    "one that is added to the data": ("a = Add (x, one) e = Erf (a) y = Mul (e, s)", "one_grad"),
    "a large epsilon": ("a = Abs (x) e = Add (a, half) l = Log (e) y = Mul (l, s)", "half_grad"),
    "a small bias": ("e = Add (x, eps) y = Mul (e, s)", "eps_grad"),
}


@pytest.mark.parametrize("how", NO_FORMULAS)
def test_other_numbers_are_weights(how):
    body, want = NO_FORMULAS[how]
    assert want in output_names(differentiated(with_numbers(body, NUMBERS | {"free": 0.3})))


@pytest.mark.parametrize("op", ["Mul", "Div"])
@pytest.mark.parametrize("number", [1e-44, np.inf, -np.inf, np.nan], ids=str)
def test_numbers_that_have_no_reciprocal(op, number):
    forward = summed(
        "float[N, 2] x", f"t = {op} (x, free) y = Mul (t, s)", initializers="float[2] s = {1, 2}, float free = {1}"
    )
    forward.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(np.float32(number), "free"))
    assert "free_grad" in output_names(differentiated(forward))


def test_a_node_without_outputs_has_no_formula():
    node = ir.node("Mul", [ir.val("a"), ir.val("b", const_value=ir.tensor(np.float32(0.5)))], num_outputs=0)
    assert list(formula_numbers(ir.Graph([], [], nodes=[node], name="g"))) == []


WEIGHTS = {
    "a shift in front of a scale": ("c = Sub (x, m) y = Mul (c, s)", ["m_grad", "s_grad"]),
    "a variance of the data": (
        "q = Mul (x, x) k = ReduceMean (q) e = Add (k, eps) sd = Sqrt (e) c = Sub (x, m) y = Div (c, sd)",
        ["m_grad"],
    ),
    "a large addend": ("e = Add (v, one) sd = Sqrt (e) y = Mul (x, sd)", ["v_grad"]),
    "a root of a sum with data": ("e = Add (v, x) sd = Sqrt (e) y = Mul (x, sd)", ["v_grad"]),
    "another power": (
        "e = Add (v, eps) h = Constant <value_float = 2.0> () i = Pow (e, h) y = Mul (x, i)",
        ["v_grad"],
    ),
    "a variance that is a bias, too": (f"{SD} d = Div (x, sd) y = Add (d, v)", ["v_grad"]),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_what_is_no_statistic_is_a_weight(name):
    body, want = WEIGHTS[name]
    forward = summed("float[N, 2] x", body, initializers=f"{FOUR}, float[2] one = {{1, 1}}")
    got = set(output_names(differentiated(forward)))
    assert set(want) <= got
