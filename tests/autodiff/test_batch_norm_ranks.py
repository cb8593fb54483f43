"""Batch norms whose X has one dimension (C is 1 then) or an unknown rank."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import bngrad
from autodiff.gradient_cases import Case
from autodiff.gradient_checks import check_gradients

# Frozen batch norms, of which the public functions warn, are tested too.
pytestmark = pytest.mark.filterwarnings("ignore::bngrad.BngradWarning")

POSITIVE = {"v": lambda rng, shape: rng.uniform(0.5, 2, shape)}
TRAINED = "z, a, b = BatchNormalization<training_mode = 1>({}, s, c, m, v) y = Identity(z)"
FROZEN = "y = BatchNormalization({}, s, c, m, v)"
PARAMETERS = "float[{0}] s, float[{0}] c, float[{0}] m, float[{0}] v"
VECTORS = ({"N": 5}, {"N": 2})


def _case(name, x, channels, body, dims, more=""):
    inputs = f"{x}, {PARAMETERS.format(channels)}"
    return Case(name, inputs, more + body, wrt=("x", "s", "c"), dims=dims, draw=POSITIVE, opset=17)


CASES = [
    _case("a vector in training", "float[N] x", 1, TRAINED.format("x"), VECTORS),
    _case("a vector, frozen", "float[N] x", 1, FROZEN.format("x"), VECTORS),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients(case):
    check_gradients(case)


RESHAPED = """<ir_version: 8, opset_import: ["" : 17]>
g (float[12] x, int64[R] shape, float[N] s, float[N] c, float[N] m, float[N] v) => (float loss) {{
    t = Reshape(x, shape)
    {}
    q = Mul(y, w)
    loss = ReduceSum<keepdims = 0>(q) }}"""


def _forward(shape, frozen, w):
    """The same model with the shape in it, or not."""
    channels = shape[1] if len(shape) > 1 else 1
    text = RESHAPED.format((FROZEN if frozen else TRAINED).format("t")).replace("[N]", f"[{channels}]")
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w.reshape(shape), "w"))
    return model


@pytest.mark.parametrize("shape", [(12,), (4, 3), (2, 3, 2), (1, 3, 2, 2)], ids=str)
@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "training"])
def test_a_rank_that_only_the_run_knows(frozen, shape, rng):
    """The graph agrees with that of the model with a constant shape, whose batch norm has a known rank."""
    w = rng.standard_normal(12).astype(np.float32)
    unknown = _forward(shape, frozen, w)
    of_constant_shape = onnx.ModelProto()
    of_constant_shape.CopyFrom(unknown)
    del of_constant_shape.graph.input[1]
    of_constant_shape.graph.initializer.append(onnx.numpy_helper.from_array(np.array(shape, np.int64), "shape"))
    channels = shape[1] if len(shape) > 1 else 1
    feeds = {name: rng.uniform(0.5, 2, channels).astype(np.float32) for name in "scmv"}
    feeds["x"] = rng.standard_normal(12).astype(np.float32)
    wrt = ["x", "s", "c"]
    names = [f"{name}_grad" for name in wrt]
    want = bngrad.session(bngrad.differentiate(of_constant_shape, loss="loss", wrt=wrt)).run(names, feeds)
    training = bngrad.differentiate(unknown, loss="loss", wrt=wrt)
    for implementation in ("function", "native"):
        got = bngrad.session(training, implementation).run(names, {**feeds, "shape": np.array(shape, np.int64)})
        for actual, other in zip(got, want, strict=True):
            np.testing.assert_allclose(actual, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "training"])
def test_an_input_without_a_shape(frozen, rng):
    """ONNX Runtime takes it, onnx's checker does not."""
    mode = "" if frozen else "<training_mode = 1>"
    outputs = "y" if frozen else "y, a, b"
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[N] x, float[3] s, float[3] c, float[3] m, float[3] v) => (float loss) {{
            {outputs} = BatchNormalization{mode}(x, s, c, m, v)
            q = Mul(y, y)
            loss = ReduceSum<keepdims = 0>(q) }}""")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    training = bngrad.differentiate(model, loss="loss", wrt=["s", "c"])
    feeds = {name: rng.uniform(0.5, 2, 3).astype(np.float32) for name in "scmv"}
    feeds["x"] = rng.standard_normal((4, 3, 2)).astype(np.float32)
    model.graph.input[0].CopyFrom(onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 3, 2]))
    with_shape = bngrad.differentiate(model, loss="loss", wrt=["s", "c"])
    names = ["loss", "s_grad", "c_grad"]
    got, want = (bngrad.session(graph).run(names, feeds) for graph in (training, with_shape))
    for actual, other in zip(got, want, strict=True):
        np.testing.assert_allclose(actual, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("implementation", ["function", "native"])
def test_a_vector_is_rewritten_to_what_stock_ort_computes(implementation, rng):
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[N] x, float[1] s, float[1] c, float[1] m, float[1] v)
            => (float[N] y, float[1] new_mean, float[1] new_var) {
            y, new_mean, new_var = BatchNormalization<training_mode = 1>(x, s, c, m, v) }""")
    feeds = {name: rng.uniform(0.5, 2, 1).astype(np.float32) for name in "scmv"}
    feeds["x"] = rng.standard_normal(9).astype(np.float32)
    want = bngrad.session(model, "function").run(None, feeds)
    got = bngrad.session(bngrad.rewrite(model), implementation).run(None, feeds)
    for actual, other in zip(got, want, strict=True):
        assert actual.shape == other.shape
        np.testing.assert_allclose(actual, other, rtol=1e-5, atol=1e-6)


def test_a_gradient_of_a_vector(rng):
    """BatchNormalizationGrad at rank 1 equals that of the same data with a second dimension of 1."""
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[{0}] dy, float[{0}] x, float[1] s, float[1] m, float[1] i) =>
            (float[{0}] dx, float[1] ds, float[1] db) {{
            dx, ds, db = com.microsoft.BatchNormalizationGrad(dy, x, s, m, i) }}"""
    feeds = {name: rng.uniform(0.5, 2, 1).astype(np.float32) for name in "smi"}
    feeds |= {name: rng.standard_normal(7).astype(np.float32) for name in ("dy", "x")}
    vector, matrix = (bngrad.rewrite(onnx.parser.parse_model(text.format(dims))) for dims in ("N", "N,1"))
    got = bngrad.session(vector).run(None, feeds)
    want = bngrad.session(matrix).run(None, {**feeds, "dy": feeds["dy"][:, None], "x": feeds["x"][:, None]})
    assert got[0].shape == (7,)
    for actual, other in zip(got, want, strict=True):
        np.testing.assert_allclose(actual, other.reshape(actual.shape), rtol=1e-5)


def test_the_forward_model_keeps_its_names():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[N] x, float[1] s, float[1] m) => (float[N] y, float loss) {
            y = BatchNormalization(x, s, s, m, s)
            loss = ReduceMean<keepdims = 0>(y) }""")
    training = bngrad.differentiate(ir.from_proto(model), loss="loss", wrt=["s"])
    assert [value.name for value in training.graph.outputs] == ["y", "loss", "s_grad"]
