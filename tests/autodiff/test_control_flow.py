"""Control flow: what is folded, and what is refused in the bodies of If, Loop and Scan."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import bngrad
from autodiff.small_models import X, differentiated, gradients, output_names, summed
from bngrad.errors import UnsupportedNodeError
from bngrad.validation.float64 import evaluate

C = "z = Constant <value = float {0}> () m = ReduceMax <keepdims = 0> (x) c = Greater (m, z)"
"""The condition of a branch, which is true for `X`."""


def branch(nodes):
    """A model of an If whose first branch computes p by these nodes."""
    return summed(
        "float[3] x",
        f"""{C} y = If (c) <then_branch = t () => (float[3] p) {{ {nodes} }},
        else_branch = e () => (float[3] q) {{ q = Neg (x) }}>""",
    )


REFUSED = {
    "random numbers": (
        "r = RandomNormalLike (x) p = Mul (r, x)",
        r"^If node 'y' .*would draw the random numbers of RandomNormalLike node 'r' \(outputs r\), in its body,",
    ),
    "dropout": (
        "b = Constant <value = bool {1}> () h = Constant <value = float {0.5}> () p = Dropout (x, h, b)",
        r"^If node 'y' .*would draw the random numbers of Dropout node 'p'",
    ),
    "bits": (
        "s = Cast <to = 8> (x) t = Cast <to = 1> (s) k = Abs (x) p = Mul (t, k)",
        r"^Cast node 's' .* cannot be differentiated: it has no gradient with respect to input 0, 'x',",
    ),
    "an op without a rule": (
        "p = local.F (x)",
        r"^local\.F node 'p' \(outputs p\) cannot be differentiated: it has no gradient rule$",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_a_branch(name):
    nodes, message = REFUSED[name]
    with pytest.raises(UnsupportedNodeError, match=message):
        differentiated(branch(nodes), wrt=["x"])


def test_random_numbers_that_no_gradient_needs():
    nodes = "r = RandomNormalLike (x) e = Exp (x) p = Add (r, e)"
    np.testing.assert_allclose(gradients(branch(nodes), {"x": X}, wrt=["x"])["x_grad"], np.exp(X), rtol=1e-6)


def test_a_constant_condition_is_folded():
    """Both branches have a value of the same name, and so has the node that follows."""
    text = """f = Constant <value = bool {0}> () c = Identity (f)
        y = If (c) <then_branch = t () => (float[3] p) { i = Neg (x) p = Mul (i, i) },
            else_branch = e () => (float[3] p) <float[3] k = {1, 2, 3}> { i = Exp (x) p = Mul (i, k) }>"""
    forward = summed("float[3] x", text)
    assert not any(node.op_type == "If" for node in differentiated(forward, wrt=["x"]).graph)
    got = gradients(forward, {"x": X}, wrt=["x"])["x_grad"]
    np.testing.assert_allclose(got, np.exp(X) * [1, 2, 3], rtol=1e-6)


@pytest.mark.parametrize("inputs", ["float[3] x", "float[N] x"])
def test_a_condition_of_shapes_is_folded_where_they_are_numbers(inputs):
    text = """s = Shape (x) three = Constant <value_ints = [3]> () c = Equal (s, three) beside = Sin (x)
        y = If (c) <then_branch = t () => (float[3] p) { p = Exp (x) },
            else_branch = e () => (float[3] q) { q = Neg (beside) }>"""
    forward = summed(inputs, text)
    left = {node.op_type for node in differentiated(forward, wrt=["x"]).graph}
    assert ("If" in left, "Sin" in left) == (("N" in inputs),) * 2
    np.testing.assert_allclose(gradients(forward, {"x": X}, wrt=["x"])["x_grad"], np.exp(X), rtol=1e-6)


def test_a_branch_that_the_shapes_of_inputs_exclude_may_contradict_them():
    text = """s = Shape (x) four = Constant <value_ints = [4]> () c = Equal (s, four)
        y = If (c) <then_branch = t () => (float[4] p) { p = Add (x, k) },
            else_branch = e () => (float[3] q) { q = Exp (x) }>"""
    forward = summed("float[3] x", text, initializers="float[4] k = {1, 2, 3, 4}")
    np.testing.assert_allclose(gradients(forward, {"x": X}, wrt=["x"])["x_grad"], np.exp(X), rtol=1e-6)


@pytest.mark.parametrize("default", ["", "bool c = {1}"])
def test_a_condition_that_can_be_fed_is_not_folded(default):
    text = """y = If (c) <then_branch = t () => (float[3] p) { p = Exp (x) },
        else_branch = e () => (float[3] q) { q = Neg (x) }>"""
    forward = summed("float[3] x, bool c", text, initializers=default)
    feeds = {"x": X, "c": np.bool_(False)}
    np.testing.assert_array_equal(gradients(forward, feeds, wrt=["x"])["x_grad"], -np.ones(3))


UNROLLED = """a = Gather (x, zero) b = Gather (x, one) c = Gather (x, two)
    a1 = MatMul (h0, w) a2 = Add (a1, a) h1 = Tanh (a2) ya = Mul (h1, h0)
    b1 = MatMul (h1, w) b2 = Add (b1, b) h2 = Tanh (b2) yb = Mul (h2, h1)
    c1 = MatMul (h2, w) c2 = Add (c1, c) h3 = Tanh (c2) yc = Mul (h3, h2)
    s1 = Sum (ya, yb, yc, h3) y = Mul (s1, s1)"""
SCANNED = """h, e = Scan <num_scan_inputs = 1, body = f (float[2] s, float[2] r) => (float[2] t, float[2] u) {
        p = MatMul (s, w) q = Add (p, r) t = Tanh (q) u = Mul (t, s) }> (h0, x)
    axis = Constant <value_ints = [0]> () es = ReduceSum <keepdims = 0> (e, axis)
    s1 = Add (es, h) y = Mul (s1, s1)"""
LOOPED = """h, e = Loop <body = f (int64 i, bool on, float[2] s) => (bool next, float[2] t, float[2] u) {
        next = Identity (on) r = Gather (x, i) p = MatMul (s, w) q = Add (p, r) t = Tanh (q) u = Mul (t, s)
        }> (three, , h0)
    axis = Constant <value_ints = [0]> () es = ReduceSum <keepdims = 0> (e, axis)
    s1 = Add (es, h) y = Mul (s1, s1)"""
INDICES = "int64 three = {3}, int64 zero = {0}, int64 one = {1}, int64 two = {2}"


@pytest.mark.parametrize("loop", [SCANNED, LOOPED])
def test_gradients_of_the_unrolled_graph(loop):
    feeds = {
        "x": np.float32([[0.3, -1], [0.7, 0.2], [-0.4, 1.1]]),
        "h0": np.float32([0.5, -0.6]),
        "w": np.float32([[0.9, -0.3], [0.4, 0.8]]),
    }
    got, want = (
        gradients(
            summed("float[3, 2] x, float[2] h0, float[2, 2] w", body, initializers=INDICES), feeds, wrt=[*feeds]
        )
        for body in (loop, UNROLLED)
    )
    for name in feeds:
        np.testing.assert_allclose(got[f"{name}_grad"], want[f"{name}_grad"], rtol=1e-6, err_msg=name)


def looped(nodes, state="float[3] s", results="bool on, float[3] t", first="x"):
    """A model of a Loop with a body of these nodes."""
    return summed(
        "float[3] x",
        f"""m = Constant <value_int = 2> () h = Loop <body = f (int64 i, bool go, {state}) => ({results}) {{
        on = Identity (go) {nodes} }}> (m, , {first}) y = Mul (h, h)""",
    )


REFUSED_IN_LOOP = {
    "random numbers": (
        looped("r = RandomUniformLike (s) t = Mul (s, r)"),
        r"^Loop node 'h' .*would draw the random numbers of RandomUniformLike node 'r'",
    ),
    "growing state": (
        looped("p = Mul (s, s) t = Concat <axis = 0> (p, x)", state="s", results="bool on, t"),
        r"^Loop node 'h' .*: its state 's', which its gradient needs, changes its shape from step to step; ",
    ),
    "an op without a rule": (
        looped("t = local.F (s)"),
        r"^local\.F node 't' \(outputs t\) cannot be differentiated: it has no gradient rule$",
    ),
    "text": (
        looped("u = Cast <to = 8> (s) v = Cast <to = 1> (u) t = Mul (v, s)"),
        r"^Cast node 'u' .*: it has no gradient with respect to input 0, 's',",
    ),
}


@pytest.mark.parametrize("name", REFUSED_IN_LOOP)
def test_refused_in_a_loop(name):
    forward, message = REFUSED_IN_LOOP[name]
    with pytest.raises(UnsupportedNodeError, match=message):
        differentiated(forward, wrt=["x"])


def test_second_derivatives_of_the_unrolled_graph():
    inputs = {name: f"float[{size}] {name}" for name, size in (("x", "3, 2"), ("h0", "2"), ("w", "2, 2"))}
    results = []
    for body in (LOOPED, UNROLLED):
        forward = summed(", ".join(inputs.values()), body, initializers=INDICES)
        model = bngrad.hvp(forward, loss="loss", wrt=[*inputs])
        shapes = {
            value.name: [size.dim_value for size in value.type.tensor_type.shape.dim]
            for value in model.graph.input
        }
        feeds = {
            name: np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32)
            for name, shape in shapes.items()
        }
        results.append(evaluate(model, feeds, [f"{name}_hvp" for name in inputs]))
    *got, want = results
    for values in got:
        for name, array in want.items():
            np.testing.assert_allclose(values[name], array, rtol=1e-6, atol=1e-9, err_msg=name)


def test_numbers_of_a_formula_in_a_body_are_no_weights():
    nodes = """q = Mul (s, s) v = ReduceMean <keepdims = 1> (q) e = Add (v, eps) d = Sqrt (e) n = Div (s, d)
        t = Mul (n, w)"""
    text = f"""m = Constant <value_int = 2> () h = Loop <body = f (int64 i, bool go, float[3] s) =>
        (bool on, float[3] t) {{ on = Identity (go) {nodes} }}> (m, , x) y = Mul (h, h)"""
    forward = summed("float[3] x", text, initializers="float eps = {0.00001}, float[3] w = {1, 2, 3}")
    assert output_names(differentiated(forward)) == ["loss", "w_grad"]


OTHER_BODIES = {
    "two outputs of three": f"""{C} y, k = If (c) <then_branch = t () => (float[3] p) {{ p = Exp (x) }},
        else_branch = e () => (float[3] q) {{ q = Neg (x) }}>""",
    "a state that the body lacks": """m = Constant <value_int = 2> () y = Loop <body = f (int64 i, bool go, s)
        => (bool on, float[3] t) { on = Identity (go) t = Mul (s, x) }> (m, , x, x)""",
    "no scan input": "y = Scan <num_scan_inputs = 0, body = f (float[3] s) => (float[3] t) { t = Exp (s) }> (x)",
}


@pytest.mark.parametrize("name", OTHER_BODIES)
def test_a_body_with_other_inputs_or_outputs_is_refused(name):
    forward = summed("float[3] x", OTHER_BODIES[name])
    forward.graph.value_info.append(onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [3]))
    message = r"^(If|Loop|Scan) node 'y' .* cannot be differentiated: .*(contradict|not those of its body)"
    with pytest.raises(UnsupportedNodeError, match=message):
        differentiated(forward, wrt=["x"])


def test_a_branch_of_a_model_that_contradicts_itself_elsewhere():
    forward = branch("p = Exp (x)")
    forward.graph.node.append(onnx.helper.make_node("Add", ["x", "four"], ["beside"]))
    forward.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(4, np.float32), "four"))
    assert output_names(differentiated(forward, wrt=["x"])) == ["loss", "x_grad"]


BRAIN_FLOATS = """<ir_version: 8, opset_import: ["" : 18]> g (TYPE[3] x, TYPE[3] w) => (TYPE loss) {
    n = Constant <value = int64 {3}> () one = Constant <value = int64 {1}> ()
    y = Loop <body = l (int64 i, bool go, TYPE[3] u) => (bool on, TYPE[3] o) { on = Identity (go)
        c = Greater (i, one) o = If (c) <then_branch = t () => (TYPE[3] p) { p = Mul (u, w) },
            else_branch = e () => (TYPE[3] q) { q = Add (u, x) }> }> (n, , x)
    z = Mul (y, y) loss = ReduceSum <keepdims = 0> (z) }"""


def test_bodies_of_bfloat16():
    """Below opset 20, ConstantOfShape does not take it."""
    feeds = {"x": np.array([1, 2, -0.5]), "w": np.array([0.5, 1, 2])}
    narrow, wide = (
        evaluate(
            bngrad.differentiate(onnx.parser.parse_model(BRAIN_FLOATS.replace("TYPE", type_)), wrt=["x", "w"]),
            feeds,
            ["x_grad", "w_grad"],
        )
        for type_ in ("bfloat16", "float")
    )
    for name, gradient in wide.items():
        np.testing.assert_array_equal(narrow[name], gradient)
        assert gradient.any()
