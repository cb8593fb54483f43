"""Models in float64: what is widened, what is left, what is computed, what is refused."""

from __future__ import annotations

import tracemalloc
from math import erf

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from bngrad.errors import InputError, UnsupportedNodeError
from bngrad.validation.float64 import EvaluationError, Evaluator, evaluate
from bngrad.validation.widening import to_float64

HEADER = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1, "f" : 1]>\n'
THIRD = float(np.float32(1 / 3))


def parse(text):
    return onnx.parser.parse_model(HEADER + text)


def narrow_types(model):
    """Every place in a model that still says float32."""
    text = str(model)
    return [line for line in ("elem_type: 1\n", "data_type: 1\n", "type: FLOAT\n") if line in text]


# ---- to_float64 ----

WIDENED = {
    "input-and-output": "g (float[N] x) => (float[N] y) { y = Relu(x) }",
    "inner-value": "g (float[N] x) => (float[N] y) <float[N] h> { h = Relu(x)  y = Relu(h) }",
    "initializer": "g (float[1] x) => (float[1] y) <float[1] w = {0.5}> { y = Add(x, w) }",
    "constant-tensor": "g (float[1] x) => (float[1] y) { w = Constant<value = float[1] {0.5}>()  y = Add(x, w) }",
    "constant-number": "g (float[1] x) => (float[1] y) { w = Constant<value_float = 0.5>()  y = Add(x, w) }",
    "constant-numbers": "g (float[1] x) => (float[1] y) { w = Constant<value_floats = [0.5]>()  y = Add(x, w) }",
    "constant-of-shape": """g (float[1] x, int64[1] n) => (float[1] y) {
        w = ConstantOfShape<value = float[1] {0.5}>(n)  y = Add(x, w) }""",
    "constant-of-shape-default": """g (float[1] x, int64[1] n) => (float[1] y) {
        w = ConstantOfShape(n)  y = Add(x, w) }""",
    "cast": "g (int64[1] n) => (float[1] y) { y = Cast<to = 1>(n) }",
    "random-default": "g (float[1] x) => (float[1] y) { w = RandomNormal<shape = [1]>()  y = Add(x, w) }",
    "random": "g (float[1] x) => (float[1] y) { w = RandomUniform<shape = [1], dtype = 1>()  y = Add(x, w) }",
    "eye": "g (int64[2,2] n) => (float[2,2] y) { y = EyeLike<dtype = 1>(n) }",
    "subgraph": """g (bool c, float[1] x) => (float[1] y) {
        y = If(c) <then_branch = t () => (float[1] a) <float[1] w = {0.5}> { a = Add(x, w) },
                   else_branch = e () => (float[1] b) { b = Constant<value_floats = [0.5]>() }> }""",
    "sequence": """g (float[1] x) => (float[1] y) <seq(float[1]) s> {
        s = SequenceConstruct(x)  i = Constant<value_int = 0>()  y = SequenceAt(s, i) }""",
    "function": """g (float[1] x) => (float[1] y) { y = f.Shifted<by = 0.5>(x) }
        <domain: "f", opset_import: ["" : 17]>
        Shifted <by> (a) => (b) { w = Constant<value_float: float = @by>()  b = Add(a, w) }""",
}


@pytest.mark.parametrize("name", WIDENED)
def test_no_float32_is_left(name):
    model = parse(WIDENED[name])
    before = model.SerializeToString()
    wide = to_float64(model)
    assert model.SerializeToString() == before
    assert narrow_types(model)
    assert not narrow_types(wide)
    onnx.checker.check_model(wide, full_check=True)
    feeds = {"x": np.array([0.1]), "n": np.array([1]), "c": np.array(True)}
    if name == "eye":
        feeds["n"] = np.zeros([2, 2], np.int64)
    (y,) = evaluate(model, {value.name: feeds[value.name] for value in model.graph.input}).values()
    assert y.dtype == np.float64


SIXTEEN_BITS = """g (float16[1] x) => (float[1] y) {
    w = Constant<value_float = 0.5>()  v = CastLike(w, x)  a = Add(x, v)
    b = Cast<to = 16>(a)  c = Cast<to = 10>(b)  y = Cast<to = 1>(c) }"""


def test_sixteen_bits_are_widened():
    wide = to_float64(parse(SIXTEEN_BITS))
    onnx.checker.check_model(wide, full_check=True)
    values = (*wide.graph.input, *wide.graph.output, *wide.graph.value_info)
    assert {value.type.tensor_type.elem_type for value in values} == {TensorProto.DOUBLE}
    assert [node.attribute[0].i for node in wide.graph.node if node.op_type == "Cast"] == [TensorProto.DOUBLE] * 3
    x = np.array([1 / 3], np.float16)
    assert evaluate(parse(SIXTEEN_BITS), {"x": x})["y"] == float(x[0]) + 0.5


DOMAIN_BY_ITS_OTHER_NAME = """<ir_version: 8, opset_import: ["ai.onnx" : 17]>
g (float[1] x) => (float[1] y) { y = Exp(x) }"""


def test_the_default_domain_may_be_called_ai_onnx():
    model = onnx.parser.parse_model(DOMAIN_BY_ITS_OTHER_NAME)
    model.graph.node[0].domain = "ai.onnx"
    assert evaluate(model, {"x": np.zeros(1)})["y"] == 1


RANDOM = {
    "dropout": "y = Dropout(x, ratio, on)",
    "normal": "h = RandomNormalLike(x)  y = Add(x, h)",
    "uniform": "h = RandomUniformLike(x)  y = Add(x, h)",
    "bernoulli": "h = Abs(x)  k = Exp(h)  m = Reciprocal(k)  y = Bernoulli(m)",
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_ops_draw_the_same_numbers_every_time(name):
    model = parse(
        f"g (float[64] x) => (float[64] y) <float ratio = {{0.5}}, bool on = {{1}}> {{ {RANDOM[name]} }}"
    )
    x = np.linspace(0.1, 1, 64)
    first, again = (evaluate(model, {"x": x})["y"] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, x)


def test_a_failing_evaluation_says_why():
    model = parse("g (float[N] x, float[M] z) => (float[K] y) { y = Add(x, z) }")
    with pytest.raises(
        EvaluationError, match=r"cannot be evaluated in float64: ValueError: .* shapes \(2,\) \(3,\)"
    ):
        evaluate(model, {"x": np.ones(2), "z": np.ones(3)})


def test_numbers_keep_the_value_that_float32_gave_them():
    wide = to_float64(
        parse(
            """g (float[1] x) => (float[1] y) <float[1] w = {0.33333333}> {
                 c = Constant<value_float = 0.33333333>()  a = Add(w, c)
                 b = LeakyRelu<alpha = 0.1>(a)  y = Add(x, b) }"""
        )
    )
    assert numpy_helper.to_array(wide.graph.initializer[0])[0] == THIRD
    assert numpy_helper.to_array(wide.graph.node[0].attribute[0].t) == THIRD
    assert wide.graph.node[2].attribute[0].f == np.float32(0.1)


LEFT = {
    "int64": "g (int64[1] x) => (int64[1] y) <int64[1] w = {2}> { y = Add(x, w) }",
    "double": "g (double[1] x) => (double[1] y) <double[1] w = {0.1}> { y = Add(x, w) }",
    "cast-to-int64": "g (double[1] x) => (int64[1] y) { y = Cast<to = 7>(x) }",
    "constant-of-shape-int64": "g (int64[1] n) => (int64[1] y) { y = ConstantOfShape<value = int64[1] {3}>(n) }",
    "eye-like-its-input": "g (int64[2,2] n) => (int64[2,2] y) { y = EyeLike(n) }",
}


@pytest.mark.parametrize("name", LEFT)
def test_other_types_stay(name):
    model = parse(LEFT[name])
    same = ir.to_proto(ir.from_proto(model))
    assert onnx.printer.to_text(to_float64(model)) == onnx.printer.to_text(same)


# ---- evaluate: precision of the evaluator's own ops ----

X = np.array([[0.1, -0.7, 1.3], [2.1, 0.4, -1.9]])
W = np.array([[0.3, -1.1, 0.6], [1.7, 0.2, 0.9]])
ROW = np.array([0.3, -0.2, 0.7])
SIXTH = float(np.float32(1 / 6))


def centered(x):
    return x - x.mean(axis=-1, keepdims=True)


def softmax(x):
    return np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)


EXACT = {
    "y = Add(x, w)": X + W,
    "y = Div(x, w)": X / W,
    "h = Mul(x, x)  y = Sqrt(h)": abs(X),
    "y = Pow(x, two)": X**2,
    "y = Exp(x)": np.exp(X),
    "h = Abs(x)  y = Log(h)": np.log(abs(X)),
    "y = Erf(x)": np.vectorize(erf)(X),
    "y = Relu(x)": np.maximum(X, 0),
    "y = LeakyRelu<alpha = 0.5>(x)": np.where(X > 0, X, X / 2),
    "y = Elu<alpha = 0.5>(x)": np.where(X > 0, X, (np.exp(X) - 1) / 2),
    "y = Sigmoid(x)": 1 / (1 + np.exp(-X)),
    "y = Tanh(x)": np.tanh(X),
    "y = Softplus(x)": np.log1p(np.exp(X)),
    "y = HardSwish(x)": X * np.clip(X * SIXTH + 0.5, 0, 1),
    "y = Clip(x, zero, one)": np.clip(X, 0, 1),
    "y = Softmax<axis = 1>(x)": softmax(X),
    "y = LogSoftmax<axis = 1>(x)": np.log(softmax(X)),
    "y = LayerNormalization<epsilon = 0.5>(x, row)": centered(X)
    / np.sqrt(X.var(axis=1, keepdims=True) + 0.5)
    * ROW,
    "y = Gemm<transB = 1, alpha = 0.5, beta = 2.0>(x, w, one)": X @ W.T / 2 + 2,
    "h = Transpose<perm = [1, 0]>(w)  y = MatMul(x, h)": X @ W.T,
    "y = ReduceMean<axes = [1]>(x)": X.mean(axis=1, keepdims=True),
    "y = ReduceSum(x)": X.sum(keepdims=True),
    "y = ReduceL2<axes = [0]>(x)": np.sqrt((X**2).sum(axis=0, keepdims=True)),
    "h = Unsqueeze(x, i0)  y = GlobalAveragePool(h)": X.mean(axis=1).reshape(1, 2, 1),
    "y = Concat<axis = 0>(x, w)": np.concatenate([X, W]),
    "y = Sum(x, w, x)": 2 * X + W,
    "h = Greater(x, w)  y = Where(h, x, w)": np.maximum(X, W),
    "y = CastLike(i0, x)": np.zeros(1),
    "y = Flatten<axis = 0>(x)": X.reshape(1, -1),
}


@pytest.mark.parametrize("body", EXACT)
def test_ops_of_the_evaluator_are_exact_in_float64(body):
    model = parse(
        f"""g (float[2, 3] x, float[2, 3] w, float[3] row) => (float y)
            <float zero = {{0.0}}, float one = {{1.0}}, float two = {{2.0}}, int64[1] i0 = {{0}}> {{ {body} }}"""
    )
    y = evaluate(model, {"x": X, "w": W, "row": ROW})["y"]
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, EXACT[body], rtol=1e-14, atol=1e-15)


GELU = X * (1 + np.vectorize(erf)(X / np.sqrt(2))) / 2
TANH_GELU = X * (1 + np.tanh(np.sqrt(2 / np.pi) * (X + 0.044715 * X**3))) / 2


@pytest.mark.parametrize(("attributes", "expected"), [("", GELU), ('<approximate = "tanh">', TANH_GELU)])
def test_gelu_of_onnx_is_exact_in_float64(attributes, expected):
    model = parse(f"g (float[2, 3] x) => (float[2, 3] y) {{ y = Gelu{attributes}(x) }}")
    model.opset_import[0].version = 20
    np.testing.assert_allclose(evaluate(model, {"x": X})["y"], expected, rtol=1e-14)


def test_improbable_class_has_a_finite_loss():
    model = parse("g (float[N, C] x, int64[N] t) => (float l) { l = SoftmaxCrossEntropyLoss(x, t) }")
    feeds = {"x": np.array([[0.0, 2000.0]]), "t": np.array([0])}
    assert evaluate(model, feeds)["l"] == 2000


# ---- evaluate: names, functions, absent outputs ----


def test_float32_feeds_are_widened_and_defaults_can_be_overridden():
    model = parse("g (float[1] x, float[1] w) => (float[1] y) <float[1] w = {2.0}> { y = Mul(x, w) }")
    x = np.array([1 / 3], np.float32)
    assert evaluate(model, {"x": x})["y"] == 2 * THIRD
    assert evaluate(model, {"x": x, "w": np.array([0.1])})["y"] == THIRD * 0.1


def test_inner_values_in_any_order():
    model = parse("g (float[1] x) => (float[1] y) { h = Exp(x)  k = Neg(h)  y = Neg(k) }")
    values = evaluate(model, {"x": np.array([0.1])}, ["k", "x", "h"])
    assert list(values) == ["k", "x", "h"]
    np.testing.assert_allclose([values["k"], values["x"], values["h"]], [-np.exp([0.1]), [0.1], np.exp([0.1])])


def test_values_are_freed_after_their_last_use():
    body = "  ".join(f"h{index + 1} = Neg(h{index})" for index in range(40))
    model = parse(f"g (float[N] h0) => (float[N] h40) {{ {body} }}")
    evaluator, array = Evaluator(model), np.ones(100_000)
    tracemalloc.start()
    values = evaluator({"h0": array}, ["h20", "h40"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert list(values) == ["h20", "h40"]
    assert peak < 6 * array.nbytes


def test_a_value_that_only_a_subgraph_reads_is_kept_for_it():
    model = parse(
        """g (bool c, float[1] x) => (float[1] y) {
             h = Exp(x)  k = Neg(x)
             y = If(c) <then_branch = t () => (float[1] a) { a = Identity(h) },
                        else_branch = e () => (float[1] b) { b = Identity(k) }> }"""
    )
    assert evaluate(model, {"c": np.array(True), "x": np.zeros(1)})["y"] == 1


def test_absent_outputs_do_not_become_absent_inputs():
    """The quotient's first gradient is left out; Clip's lower bound is absent and must stay so."""
    model = parse(
        "g (float[2] a, float[2] b) => (float[2] y) <float top = {-1.0}> "
        '{ "", d = com.microsoft.DivGrad(a, a, b)  y = Clip(d, "", top) }'
    )
    a, b = np.array([3.0, 1.0]), np.array([1.0, 2.0])
    np.testing.assert_array_equal(evaluate(model, {"a": a, "b": b})["y"], np.minimum(-a * a / b**2, -1))


def test_functions_may_call_each_other_in_any_order():
    model = parse(
        """g (float[1] x) => (float[1] y) { h = f.Outer<times = 3.0>(x)  y = f.Inner<by = 0.1>(h) }
        <domain: "f", opset_import: ["" : 17, "f" : 1]>
        Outer <times> (a) => (b) { t = f.Inner<by: float = @times>(a)  b = Relu(t) }
        <domain: "f", opset_import: ["" : 17]>
        Inner <by> (a) => (b) { w = Constant<value_float: float = @by>()  b = Mul(a, w) }"""
    )
    result = evaluate(model, {"x": np.array([1 / 3])}, ["h", "y"])
    assert result["h"] == 1 / 3 * 3.0
    assert result["y"] == 1 / 3 * 3.0 * float(np.float32(0.1))


def test_functions_of_one_name_differ_by_their_overload():
    model = parse("g (float[2] x) => (float[2] y, float[2] z) { y = f.F(x)  z = f.F(x) }")
    model.ir_version = 10
    for node, op_type in zip(model.graph.node, ("Neg", "Exp"), strict=True):
        node.overload = op_type
        body = [helper.make_node(op_type, ["a"], ["b"])]
        imports = [helper.make_opsetid("", 17)]
        model.functions.append(helper.make_function("f", "F", ["a"], ["b"], body, imports, overload=op_type))
    x = np.array([1.0, 2.0])
    got = evaluate(model, {"x": x})
    np.testing.assert_array_equal(got["y"], -x)
    np.testing.assert_array_equal(got["z"], np.exp(x))


def test_training_ops_work_inside_subgraphs_and_functions():
    model = parse(
        """g (bool c, float[2] dy, float[2] x) => (float[2] y) {
             y = If(c) <then_branch = t () => (float[2] a) { a = f.Both(dy, x) },
                        else_branch = e () => (float[2] b) { b = Identity(x) }> }
        <domain: "f", opset_import: ["" : 17, "com.microsoft" : 1]>
        Both (p, q) => (r) { s = com.microsoft.ReluGrad(p, q)  r = com.microsoft.TanhGrad(s, q) }"""
    )
    feeds = {"dy": np.array([2.0, 3.0]), "x": np.array([0.5, -0.5])}
    np.testing.assert_array_equal(evaluate(model, {**feeds, "c": np.array(True)})["y"], [2 * 0.75, 0])
    np.testing.assert_array_equal(evaluate(model, {**feeds, "c": np.array(False)})["y"], feeds["x"])


def pool_grad(dims, batch="N"):
    """AveragePool's gradient with a dX that has the given spatial dimensions, or no shape at all."""
    node = helper.make_node("AveragePoolGrad", ["dy"], ["dx"], name="pool", kernel_shape=[2, 2], strides=[2, 2])
    shape = None if dims is None else [batch, 1, *dims]
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("dy", TensorProto.FLOAT, [batch, 1, 2, 2])],
        [helper.make_tensor_value_info("dx", TensorProto.FLOAT, shape)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_pool_gradient_takes_its_extents_from_the_static_type_at_any_batch_size():
    for batch in (1, 3):
        dx = evaluate(pool_grad([5, 4]), {"dy": np.ones([batch, 1, 2, 2], np.float32)})["dx"]
        assert dx.shape == (batch, 1, 5, 4)
        assert (dx[:, :, :4] == 0.25).all()
        assert (dx[:, :, 4:] == 0).all()


# ---- evaluate: refusals ----


@pytest.mark.parametrize("dims", [None, ["H", 4]], ids=["no-shape", "symbolic"])
def test_pool_gradient_without_static_extents_is_refused(dims):
    message = r"AveragePoolGrad node 'pool' \(outputs dx\): the spatial dimensions of 'dx'"
    with pytest.raises(UnsupportedNodeError, match=message):
        evaluate(pool_grad(dims), {"dy": np.ones([1, 1, 2, 2])})


UNSUPPORTED = {
    "other-domains": (
        "g (float[1] x) => (float[1] y) { h = f.Strange(x)  y = com.microsoft.Odd(h) }",
        r"cannot be evaluated in float64: there is no implementation of com\.microsoft\.Odd, f\.Strange$",
    ),
    "default-domain": ("g (float[1] x) => (float[1] y) { y = NoSuchOp(x) }", r"of ai\.onnx\.NoSuchOp$"),
    "in-a-subgraph": (
        """g (bool c, float[1] x) => (float[1] y) {
             y = If(c) <then_branch = t () => (float[1] a) { a = f.Strange(x) },
                        else_branch = e () => (float[1] b) { b = Identity(x) }> }""",
        r"of f\.Strange$",
    ),
    "in-a-function": (
        """g (float[1] x) => (float[1] y) { y = f.Calls(x) }
        <domain: "f", opset_import: ["" : 17, "g" : 1]> Calls (a) => (b) { b = g.Strange(a) }""",
        r"of g\.Strange$",
    ),
    "attribute": (
        "g (float[1] x) => (float[1] y) { y = com.microsoft.TanhGrad<slope = 2.0>(x, x) }",
        r"of com\.microsoft\.TanhGrad with slope$",
    ),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_op_without_implementation_is_refused_by_name(name):
    text, message = UNSUPPORTED[name]
    model = parse(text)
    if name == "in-a-function":
        model.opset_import.append(helper.make_opsetid("g", 1))
    feeds = {"x": np.ones(1), "c": np.array(True)}
    with pytest.raises(UnsupportedNodeError, match=message):
        evaluate(model, {value.name: feeds[value.name] for value in model.graph.input})


@pytest.mark.parametrize(
    ("feeds", "outputs", "message"),
    [
        pytest.param({}, None, "inputs without a value: x", id="missing-feed"),
        pytest.param(
            {"x": 1, "z": 1}, None, "there is no input z; the model's inputs are x, w", id="unknown-feed"
        ),
        pytest.param({"x": 1}, ["y", "q"], "there is no value q in the model", id="unknown-output"),
    ],
)
def test_wrong_names_are_refused(feeds, outputs, message):
    model = parse("g (float[1] x, float[1] w) => (float[1] y) <float[1] w = {2.0}> { y = Mul(x, w) }")
    with pytest.raises(InputError, match=message):
        evaluate(model, {name: np.ones(1) for name in feeds}, outputs)
