"""Gradient rules of users, for com.microsoft.Inverse, which has a kernel and no rule of bngrad."""

from __future__ import annotations

import re

import numpy as np
import onnx.parser
import onnx_ir as ir
import onnxruntime
import onnxscript
import pytest

import bngrad
from bngrad.autodiff.rules import RULES
from bngrad.errors import InputError, ModelError, UnsupportedNodeError

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


MIXED = """<ir_version: 8, opset_import: ["" : 18, "my" : 1]>
g (float[N, 3] x, float[3] w, float16[N, 3] h) => (float loss) <float[N, 3] y> {
  y = my.Mixed (x, w, h)
  loss = ReduceSum <keepdims = 0> (y)
}"""


def mixed(back: bngrad.Backward):
    """Of inputs of several types and shapes."""
    return [
        back.dY,
        back.op("ReduceSum", back.dY, back.int64([0]), keepdims=0),
        back.cast(back.dY, ir.DataType.FLOAT16),
    ]


def twice(back: bngrad.Backward):
    return back.op("Concat", back.dY, back.dY, axis=1)


WRONG = {
    "not summed": ({1: lambda back: back.dY}, "input 1, 'w', that is float[N, 3]; expected float[3]"),
    "a number": (
        {0: lambda back: back.op("ReduceMean", back.dY, keepdims=0)},
        "input 0, 'x', that is float[]; expected float[N, 3]",
    ),
    "of one sample": (
        {0: lambda back: back.op("ReduceMean", back.dY, back.int64([0]), keepdims=1)},
        "input 0, 'x', that is float[1, 3]; expected float[N, 3]",
    ),
    "the sum of another axis": (
        {1: lambda back: back.op("ReduceSum", twice(back), back.int64([0]), keepdims=0)},
        "input 1, 'w', that is float[6]; expected float[3]",
    ),
    "another type": ({2: lambda back: back.dY}, "input 2, 'h', that is float[N, 3]; expected float16[N, 3]"),
    "a constant": ({1: lambda back: back.int64([1, 2, 3])}, "input 1, 'w', that is int64[3]; expected float[3]"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_gradient_of_another_type_or_shape_is_refused(register, case):
    changed, message = WRONG[case]
    register("my", "Mixed", inputs=None)(
        lambda back: [changed[i](back) if i in changed else value for i, value in enumerate(mixed(back))]
    )
    expected = f"the gradient rule of my.Mixed returned a gradient of {message}, the type of the input"
    with pytest.raises(InputError, match=re.escape(expected)):
        bngrad.differentiate(onnx.parser.parse_model(MIXED), wrt=["x", "w", "h"])


@pytest.mark.parametrize(
    "rule",
    [
        mixed,
        lambda back: [back.dY, back.outputs_of("Sum", back.dY, outputs=["s"], domain="my")[0], mixed(back)[2]],
        lambda back: [back.dY, None, None],
        lambda back: [back.dY, back.dY if back.needs(1) else None, back.dY],
    ],
    ids=["right", "of an unknown op", "of zero", "of inputs that need none"],
)
def test_a_gradient_of_the_type_or_an_unknown_one_is_taken(register, rule):
    register("my", "Mixed", inputs=None)(rule)
    names = ["x", "w", "h"] if rule is mixed else ["x"]
    graph = bngrad.differentiate(onnx.parser.parse_model(MIXED), wrt=names)
    assert {value.name for value in graph.graph.output} >= {f"{name}_grad" for name in names}


ROW = """<ir_version: 8, opset_import: ["" : 18, "my" : 1]>
g (float[N, 3] x, float[1, 3] w) => (float loss) <float[N, 3] y> {
  y = my.Add (x, w)
  loss = ReduceSum <keepdims = 0> (y)
}"""


@pytest.mark.parametrize("summed", [False, True])
def test_a_gradient_of_any_number_of_rows_is_not_that_of_one(register, summed):
    register("my", "Add", inputs=None)(
        lambda back: [back.dY, back.op("ReduceSum", back.dY, back.int64([0])) if summed else back.dY]
    )
    model = onnx.parser.parse_model(ROW)
    if summed:
        assert bngrad.differentiate(model, wrt=["x", "w"])
        return
    message = "input 1, 'w', that is float[N, 3]; expected float[1, 3], the type of the input"
    with pytest.raises(InputError, match=re.escape(message)):
        bngrad.differentiate(model, wrt=["x", "w"])


def test_the_type_of_a_function_of_onnx_is_checked(register):
    rule = (INVERSE_GRAD % 18).replace("Neg (b)", "ReduceSum (b)")
    register("com.microsoft", "Inverse")(onnx.parser.parse_function(rule))
    message = "input 0, 'x', that is float[1, 1, 1]; expected float[N, 3, 3], the type of the input"
    with pytest.raises(InputError, match=re.escape(message)):
        bngrad.differentiate(onnx.parser.parse_model(MODEL % ""), wrt=["x"])


@pytest.mark.parametrize(
    "key", [("", "Relu"), ("ai.onnx", "NonZero"), ("bngrad", "BatchNormalizationTraining")], ids=str
)
def test_ops_that_are_not_the_users(key):
    with pytest.raises(InputError, match="is not yours"):
        bngrad.gradient(*key)


INVERSE_GRAD = """<domain: "my", opset_import: ["" : %d]>
InverseGrad (x, y, dy) => (dx) {
  t = Transpose <perm = [0, 2, 1]> (y)
  a = MatMul (t, dy)
  b = MatMul (a, t)
  dx = Neg (b)
}"""


def in_onnxscript(opset: int):
    op, domain = getattr(onnxscript, f"opset{opset}"), onnxscript.values.Opset("my", 1)

    @onnxscript.script(domain, default_opset=op)
    def inverse_grad(x, y, dy):  # noqa: ARG001 - a rule takes it
        t = op.Transpose(y, perm=[0, 2, 1])
        return op.Neg(op.MatMul(op.MatMul(t, dy), t))

    return inverse_grad


@pytest.mark.parametrize("opset", [17, 18], ids=str)
@pytest.mark.parametrize("form", ["text", "onnxscript"])
def test_a_function_of_onnx_is_a_rule(register, form, opset):
    rule = onnx.parser.parse_function(INVERSE_GRAD % opset) if form == "text" else in_onnxscript(opset)
    assert register("com.microsoft", "Inverse")(rule) is rule
    model = onnx.parser.parse_model(MODEL % "")
    by_function = bngrad.differentiate(model, wrt=["x"])
    assert not by_function.functions
    register("com.microsoft", "Inverse")(inverse)
    by_python = bngrad.differentiate(model, wrt=["x"])
    rng = np.random.default_rng(0)
    feeds = {name: np.float32(rng.standard_normal((2, 3, 3)) + 3 * np.eye(3)) for name in "xw"}
    results = [
        onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            ["x_grad"], feeds
        )[0]
        for graph in (by_function, by_python)
    ]
    np.testing.assert_array_equal(*results)


TWICE = """<ir_version: 8, opset_import: ["" : 18, "my" : 1]>
g (float[N] x, float[N] w) => (float loss) <float[N] y, float[N] z> {
  y, z = my.Both%s (x, w)
  a = ReduceSum <keepdims = 0> (y)
  loss = Identity (a)
}"""
BOTH = """<domain: "my", opset_import: ["" : 18]>
Both <alpha> (x, w) => (y, z) {
  scale = Constant <value_float: float = @alpha> ()
  s = Mul (scale, x)
  y = Mul (s, w)
  z = Add (x, w)
}"""
SCALE = """<domain: "other", opset_import: ["" : 18]>
Scale <alpha> (x) => (y) {
  scale = Constant <value_float: float = @alpha> ()
  y = Mul (scale, x)
}"""
BOTH_GRAD = """<domain: "my", opset_import: ["" : 18, "other" : 1]>
BothGrad <alpha> (x, w, y, z, dy, dz) => (dx, dw) {
  s = other.Scale <alpha: float = @alpha> (dy)
  a = Mul (s, w)
  b = Mul (s, x)
  dx = Add (a, dz)
  dw = Add (b, dz)
}"""


def test_a_function_of_onnx_has_the_attributes_inputs_and_outputs_of_the_node(register):
    register("my", "Both", inputs=None)(onnx.parser.parse_function(BOTH_GRAD))
    graph = bngrad.differentiate(onnx.parser.parse_model(TWICE % " <alpha = 3.0>"), wrt=["x", "w"])
    graph.functions.extend(map(onnx.parser.parse_function, (BOTH, SCALE)))  # in the place of a library
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    x, w = np.float32([1, 2]), np.float32([5, 7])
    dx, dw = session.run(["x_grad", "w_grad"], {"x": x, "w": w})
    np.testing.assert_array_equal(dx, 3 * w)  # z is not read: its gradient is 0
    np.testing.assert_array_equal(dw, 3 * x)


@pytest.mark.parametrize(
    ("rule", "attributes", "message"),
    [
        (BOTH_GRAD, "", "it has no attribute 'alpha'; its gradient rule expects one"),
        (BOTH_GRAD, " <alpha = 1.0, beta = 2>", "it has the attribute 'beta'; expected only alpha"),
        (BOTH_GRAD.replace("y, z, dy", "dy"), " <alpha = 1.0>", "takes 4 inputs; expected 6, its 2 inputs"),
        (BOTH_GRAD.replace("(dx, dw)", "(dx)"), " <alpha = 1.0>", "returns 1 gradients; expected 2"),
    ],
    ids=["no attribute", "another attribute", "inputs", "outputs"],
)
def test_nodes_that_a_function_of_onnx_does_not_fit(register, rule, attributes, message):
    register("my", "Both", inputs=None)(onnx.parser.parse_function(rule))
    with pytest.raises(UnsupportedNodeError, match=re.escape(message)):
        bngrad.differentiate(onnx.parser.parse_model(TWICE % attributes), wrt=["x", "w"])


@pytest.mark.parametrize("opset", [20, 21, 23], ids=str)
def test_a_function_of_an_older_opset_is_a_rule_of_newer_models(register, opset):
    """Most new versions of ops only take further types."""
    register("com.microsoft", "Inverse")(onnx.parser.parse_function(INVERSE_GRAD % 17))
    model = onnx.parser.parse_model((MODEL % "").replace('"" : 18', f'"" : {opset}'))
    graph = bngrad.differentiate(model, wrt=["x"])
    assert {entry.domain: entry.version for entry in graph.opset_import}[""] == opset
    x = np.float32([np.diag([1, 2, 4])])
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    (gradient,) = session.run(["x_grad"], {"x": x, "w": np.ones_like(x)})
    inverse = np.array([1, 0.5, 0.25])
    np.testing.assert_allclose(gradient[0], -np.outer(inverse, inverse))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (INVERSE_GRAD % 23, "imports version 23 of the ops of ai.onnx, and the model 18, in which they differ; "),
        (
            (INVERSE_GRAD % 13).replace("dx = Neg (b)", "m = ReduceMax <axes = [1]> (b) dx = Sub (m, b)"),
            "imports version 13 of the ops of ai.onnx, and the model 18, in which they differ; register a",
        ),
    ],
    ids=["newer", "older"],
)
def test_a_function_of_another_opset_is_refused(register, rule, message):
    register("com.microsoft", "Inverse")(onnx.parser.parse_function(rule))
    with pytest.raises(ModelError, match=re.escape(f"the gradient rule of com.microsoft.Inverse {message}")):
        bngrad.differentiate(onnx.parser.parse_model(MODEL % ""), wrt=["x"])


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (3, "is 3; expected a function of Python, an onnx.FunctionProto"),
        (
            onnx.parser.parse_function(BOTH_GRAD),
            "returns 2 gradients; expected 1, one for each input of inputs=(0,)",
        ),
        (
            onnx.parser.parse_function((INVERSE_GRAD % 18).replace("(a, t)", "(a, c)")),
            "of my.Both is no valid function: Nodes in a function must be topologically sorted, however input 'c'",
        ),
        (
            onnx.parser.parse_function((INVERSE_GRAD % 18).replace("dx = Neg", "dz = Neg")),
            "of my.Both is no valid function: no node makes its output 'dx'",
        ),
        (
            onnx.parser.parse_function((INVERSE_GRAD % 18).replace("MatMul", "MatMull")),
            "of my.Both is no valid function: No Op registered for MatMull",
        ),
    ],
    ids=["no function", "outputs", "unknown value", "unknown output", "unknown op"],
)
def test_rules_that_are_refused_at_once(register, rule, message):
    with pytest.raises(InputError, match=re.escape(message)):
        register("my", "Both")(rule)
