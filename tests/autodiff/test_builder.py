"""The backward pass over a graph: the gradients, their names, and the nodes that it refuses."""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir
import pytest

from autodiff.gradient_cases import in_standard_onnx
from autodiff.small_models import BRANCHES, SUM, X, differentiated, gradients, model, output_names, summed
from bngrad.autodiff.training_graph import training_graph
from bngrad.errors import ModelError, UnsupportedNodeError
from bngrad.oracle import prepare_forward
from bngrad.passes.check import check
from bngrad.passes.pipeline import rewrite
from bngrad.runtime.session import session
from bngrad.validation.float64 import evaluate

CUBE = np.ones(3) * 3 * X**2

# name: (body, the gradient by x of [0.5, -1.5, 2])
SHARED = {
    "one-consumer": ("y = Sin(x)", np.cos(X)),
    "two-consumers": ("a = Sin(x) b = Cos(x) y = Mul(a, b)", np.cos(2 * X.astype(np.float64))),
    "twice-in-one-node": ("y = Mul(x, x)", 2 * X),
    "twice-and-again": ("a = Mul(x, x) y = Mul(a, x)", CUBE),
    "thrice-in-one-node": ("y = Sum(x, x, x)", [3, 3, 3]),
    "what-cancels": ("y = Sub(x, x)", [0, 0, 0]),
    "an-inner-value": ("h = Neg(x) a = Mul(h, h) y = Mul(a, h)", -CUBE),
    "a-dead-end": ("a = Exp(x) b = Sin(a) y = Neg(x)", [-1, -1, -1]),
    "itself": ("y = Identity(x)", [1, 1, 1]),
}


@pytest.mark.parametrize("name", SHARED)
def test_what_several_nodes_read_gets_the_sum(name):
    body, want = SHARED[name]
    result = gradients(summed("float[3] x", body), {"x": X}, wrt=["x"])
    np.testing.assert_allclose(result["x_grad"], want, rtol=1e-6)


def test_shared_weight():
    forward = summed("float[2, 3] x, float[3, 3] w", "h = MatMul(x, w) y = MatMul(h, w)")
    feeds = {"x": np.ones([2, 3], np.float32), "w": np.arange(9, dtype=np.float32).reshape(3, 3)}
    result = gradients(forward, feeds, wrt=["w"])["w_grad"]
    x, w, dy = feeds["x"], feeds["w"], np.ones([2, 3])
    np.testing.assert_allclose(result, (x @ w).T @ dy + x.T @ (dy @ w.T))


def test_several_outputs():
    body = """size = Constant <value_ints = [1, 2]> ()
        a, b = Split(x, size) c = Exp(a) y = Mul(c, b)"""
    result = gradients(summed("float[3] x", body), {"x": X}, wrt=["x"])["x_grad"]
    np.testing.assert_allclose(result, [np.exp(X[0]) * X[1:].sum(), *[np.exp(X[0])] * 2], rtol=1e-6)


def test_several_gradients():
    forward = summed("float[3] x, float[3] z", "y = Mul(x, z)")
    training = differentiated(forward, wrt=["z", "x"])
    assert output_names(training) == ["loss", "z_grad", "x_grad"]


def test_types_and_shapes_of_gradients():
    forward = summed("float[N, 3] x, float[3] z", "y = Mul(x, z)")
    outputs = {value.name: value for value in differentiated(forward, wrt=["x", "z"]).graph.outputs}
    assert {outputs[name].dtype for name in ("x_grad", "z_grad")} == {ir.DataType.FLOAT}
    assert [list(outputs[name].shape) for name in ("x_grad", "z_grad")] == [["N", 3], [3]]


def test_only_what_is_asked_for_is_computed():
    forward = summed("float[1, 1, 4, 4] x, float[1, 1, 3, 3] w, float[1] b", "y = Conv(x, w, b)")
    (node,) = (n for n in differentiated(forward, wrt=["w"]).graph if n.op_type == "ConvGrad")
    assert [value.name for value in node.outputs] == ["", "w_grad"]


def test_a_double_model():
    forward = model(
        "double[3] x",
        "a = Relu(x) b = Sigmoid(a) y = Div(b, x) loss = ReduceMean <keepdims = 0> (y)",
        outputs="double loss",
    )
    lowered = in_standard_onnx(differentiated(forward, wrt=["x"]))
    feeds = {"x": X.astype(np.float64)}
    (got,) = session(lowered, "function").run(["x_grad"], feeds)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, evaluate(lowered, feeds, ["x_grad"])["x_grad"], rtol=1e-13)


def test_the_forward_model_stays_as_it_is():
    forward = summed("float[3] x", "y = Relu(x)", initializers="float[3] w = {1, 2, 3}")
    before = forward.SerializeToString()
    differentiated(forward, wrt=["x"])
    assert forward.SerializeToString() == before


def test_functions_are_inlined():
    functions = '\n<domain: "local", opset_import: ["" : 18]> square (a) => (b) { b = Mul(a, a) }'
    forward = summed("float[3] x", "y = local.square(x)", functions=functions)
    np.testing.assert_allclose(gradients(forward, {"x": X}, wrt=["x"])["x_grad"], 2 * X)


@pytest.mark.parametrize("opset", [7, 11, 13, 18, 26])
def test_opsets(opset):
    forward = summed("float[3] x", "y = Exp(x)", opset=opset)
    np.testing.assert_allclose(gradients(forward, {"x": X}, wrt=["x"])["x_grad"], np.exp(X), rtol=1e-6)


FAN_OUT = f"[e] h = Exp(x) [s] a = Sin(h) [c] b = Cos(h) [m] y = Mul(a, b) [l] {SUM}"


def test_names_are_those_of_ort(oracle):
    forward = model("float[3] x", FAN_OUT)
    prepared = prepare_forward(forward, "loss", ["x"])
    theirs = oracle.build_gradient(prepared.model, prepared.loss, prepared.wrt).model
    ours = differentiated(forward, wrt=["x"])
    assert gradient_names(ours) == gradient_names(theirs) == GRADIENT_NAMES
    assert output_names(ours) == output_names(theirs)
    for training in (ours, theirs):
        assert training.graph.initializers["loss_grad"].const_value.numpy() == 1
        (accumulate,) = (n for n in training.graph if n.name == "AccumulateGrad_h_grad")
        assert accumulate.op_type == "Sum"
        owners = {n.name.partition("_Grad/")[0] for n in training.graph if "_Grad/" in n.name}
        assert owners == set("escml")


GRADIENT_NAMES = {"x_grad", "h_grad", "h_grad_0", "h_grad_1", "a_grad", "b_grad", "y_grad"}


def gradient_names(training):
    names = {value.name for node in training.graph for value in node.outputs}
    return {name for name in names if re.fullmatch(r"\w+_grad(_\d)?", name)}


def test_nodes_without_names_get_those_of_their_outputs():
    training = differentiated(summed("float[3] x", "y = Exp(x)"), wrt=["x"])
    assert {node.name for node in training.graph} >= {"y", "y_Grad/Mul_0"}


NAMES_OF_GRADIENTS = {
    "an output": (model("float[3] x", f"y = Mul(x, x) {SUM}"), {"x": "x_grad"}),
    "an input has it": (summed("float[3] x, float[3] x_grad", "y = Mul(x, x_grad)"), {"x": "x_grad_1"}),
    "an inner value has it": (summed("float[3] x", "x_grad = Exp(x) y = Mul(x, x_grad)"), {"x": "x_grad_1"}),
    "two of them": (
        summed("float[3] x, float[3] x_grad", "y = Mul(x, x_grad)"),
        {"x": "x_grad_1", "x_grad": "x_grad_grad"},
    ),
    "an output that ends with _grad": (
        model("float[3] x", f"y = Mul(x, x) aux_grad = Neg(y) {SUM}", outputs="float loss, float[3] aux_grad"),
        {"x": "x_grad"},
    ),
}


@pytest.mark.parametrize("name", NAMES_OF_GRADIENTS)
def test_names_of_gradients(name):
    forward, want = NAMES_OF_GRADIENTS[name]
    source = ir.from_proto(forward)
    training = training_graph(source, loss="loss", wrt=list(want))
    assert training.gradients == want
    assert set(want.values()) <= set(output_names(training.model))
    check(training.model, source)


def test_an_output_with_the_name_of_a_gradient_is_refused():
    forward = model(
        "float[3] x", f"x_grad = Exp(x) y = Mul(x, x_grad) {SUM}", outputs="float loss, float[3] x_grad"
    )
    with pytest.raises(ModelError, match=r"^the model has a value 'x_grad', the name of the gradient"):
        differentiated(forward, wrt=["x"])


def test_taken_names_of_inner_gradients():
    forward = summed("float[3] x", "y_grad = Exp(x) h_grad = Neg(y_grad) h = Sin(h_grad) y = Exp(h)")
    inner = np.sin(-np.exp(X.astype(np.float64)))
    want = np.exp(inner) * np.cos(-np.exp(X)) * -np.exp(X)
    np.testing.assert_allclose(gradients(forward, {"x": X}, wrt=["x"])["x_grad"], want, rtol=1e-6)


LOOP = """n = Constant <value_int = 3> () t = Constant <value = bool {1}> ()
    y = Loop(n, t, x) <body = b (int64 i, bool u, float[3] p) => (bool v, float[3] q) {
        v = Identity(u) q = Mul(p, x) }>"""
NO_RULE = {
    "one": ("y = local.F(x)", r"F node 'y' \(outputs y\) cannot be differentiated: it has no gradient rule"),
    "several": (
        "a = local.F(x) b = local.H(a) d = local.H(a) e = Mul(b, d) y = local.G(d)",
        r"local\.F node 'a' .*: it has no gradient rule \(and 2 more: G, H\)$",
    ),
    "off-the-path": (
        "a = local.F(x) b = Exp(x) y = local.G(b)",
        r"local\.G node 'y' .*: it has no gradient rule$",
    ),
    "one-of-two-ways": (
        "a = local.F(x) b = Exp(x) y = Mul(a, b)",
        r"local\.F node 'a' .*: it has no gradient rule$",
    ),
    "in-a-branch": (
        BRANCHES.replace("p = Exp(x)", "a = local.F(x) p = Exp(a)"),
        r"local\.F node 'a' \(outputs a\) .*: it has no gradient rule$",
    ),
    "in-a-loop": (
        LOOP.replace("q = Mul(p, x)", "a = local.F(p) q = Mul(a, x)"),
        r"local\.F node 'a' \(outputs a\) .*: it has no gradient rule$",
    ),
    "behind-an-if": (f"x1 = local.F(x) {BRANCHES.replace('(x)', '(x1)')}", r"F node 'x1' .*no gradient rule$"),
    "refused-as-well": (
        'a = local.F(x) y = com.microsoft.Gelu <approximate = "sine"> (a)',
        r"F node 'a' .*: it has no gradient rule \(and 1 more: Gelu\)$",
    ),
    "behind-it-nothing-has-a-type": (
        "a = local.F(x) b = Sqrt(a) y = Mul(b, x)",
        r"F node 'a' .*no gradient rule$",
    ),
    "no-type-from-beside": (
        "a = local.F(z) b = Mul(a, x) y = Neg(b)",
        r"Mul node 'b' .*: the type of 'b' is unknown; add it to the model's value_info \(and 2 more: ",
    ),
}


@pytest.mark.parametrize("name", NO_RULE)
def test_nodes_in_the_way(name):
    body, message = NO_RULE[name]
    forward = summed("float[3] x, float[3] z, bool c", body)
    with pytest.raises(UnsupportedNodeError, match=message):
        differentiated(forward, loss="loss", wrt=["x"])


def test_a_batch_norm_of_another_system_takes_a_rewrite():
    body = "y, m, v = local.BatchNormTraining <eps = 0.001> (s, b, x)"
    forward = summed("float[4, 3] x", body, initializers="float[3] s = {1, 2, 3}, float[3] b = {0, 0, 0}")
    with pytest.raises(
        UnsupportedNodeError, match=r"no gradient rule; convert it to an op of bngrad first, with bngrad re"
    ):
        differentiated(forward, loss="loss", wrt=["s"])
    training = training_graph(rewrite(ir.from_proto(forward)).model, loss="loss")
    assert training.gradients == {"s": "s_grad", "b": "b_grad"}
    feeds = {"x": np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)}
    got = evaluate(in_standard_onnx(training.model), feeds)
    np.testing.assert_allclose(got["s_grad"], np.zeros(3), atol=1e-6)
    np.testing.assert_allclose(got["b_grad"], np.full(3, 4))


def test_nodes_beside_the_way_do_not_matter():
    beside = BRANCHES.replace("(x)", "(z)").replace("y =", "b =")
    forward = summed("float[3] x, float[3] z, bool c", f"{beside} a = Shrink(z) d = Mul(a, b) y = Mul(x, d)")
    feeds = {"x": X, "z": X, "c": np.array(False)}
    np.testing.assert_allclose(gradients(forward, feeds, wrt=["x"])["x_grad"], [0, -2.25, -4])


def test_a_training_graph_is_refused():
    training = ir.to_proto(differentiated(summed("float[3] x", "[r] y = Relu(x)"), wrt=["x"]))
    message = (
        r"^the model is a training graph already: it has .*ReluGrad node 'r_Grad/ReluGrad_0' .*; pass the forward"
    )
    with pytest.raises(ModelError, match=message):
        differentiated(training, loss="loss", wrt=["x"])
