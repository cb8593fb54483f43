"""Products with derivatives, against central differences in float64 and on stock ONNX Runtime."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import bngrad
from bngrad.errors import InputError, ModelError, UnsupportedNodeError
from bngrad.validation.float64 import Evaluator

STEP = 1e-6
HEAD = '<ir_version: 8, opset_import: ["" : 21]>\n'
BATCH_NORM = """<float[3] w = {1, 2, 0.5}, float[3] b = {0.1, 0, -1}, float[3] m = {0, 0.5, 0},
  float[3] v = {1, 2, 1}, float[3, 2, 3, 3] k> {
  c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, k)
  n%s = BatchNormalization%s (c, w, b, m, v)
  a = Tanh (n)
  y = GlobalAveragePool (a)
  y2 = Mul (y, y)
  loss = ReduceSum <keepdims = 0> (y2)
}"""
IMAGES = "g (float[N, 2, 5, 5] x) => (float[N, 3, 1, 1] y, float loss) "
VECTORS = "g (float[N, 4] x) => (float[N, M] y, float loss) "
SQUARES = "y2 = Mul (y, y) loss = ReduceSum <keepdims = 0> (y2) }"
SOFTMAX = "{ y = Softmax (x)" + SQUARES
MODELS = {
    "batch norm in training mode": IMAGES + BATCH_NORM % (", nm, nv", " <training_mode = 1>"),
    "frozen batch norm": IMAGES + BATCH_NORM % ("", ""),
    "batch norm, ReLU": IMAGES + (BATCH_NORM % (", nm, nv", " <training_mode = 1>")).replace("Tanh", "Relu"),
    "softmax": VECTORS + SOFTMAX,
    "instance norm": "g (float[N, 3, 4] x) => (float[N, 3, 4] y, float loss) "
    "<float[3] w = {1, 2, 3}, float[3] b = {0, 1, 0}> { y = InstanceNormalization (x, w, b)" + SQUARES,
    "layer norm": VECTORS + "<float[4] w = {1, 2, 3, 4}> { y = LayerNormalization (x, w)" + SQUARES,
    "pool": "g (float[N, 4] x) => (float[N, 2, M] y, float loss) <int64[3] s = {0, 2, 2}> "
    "{ r = Reshape (x, s) p = MaxPool <kernel_shape = [2]> (r) y = Tanh (p)" + SQUARES,
    "overlapping pool": "g (float[N, 2, 5, 5] x) => (float[N, 2, 3, 3] y, float loss) "
    "{ p = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x) y = Tanh (p)" + SQUARES,
    "matrix product": VECTORS + "<float[4, 3] k> { y = MatMul (x, k)" + SQUARES,
}
FROZEN = {"frozen batch norm": ["*"]}
DIMS = {"N": 2}
# A factor that is 0 at a point has a derivative there, also where the other one might be infinite.
AT_ZERO = VECTORS + "<float t = {1}> { r = Sqrt (x) y = Sub (r, t)" + SQUARES
RNG = np.random.default_rng(5)


def model_of(text):
    """A model, whose weights without values are drawn."""
    model = onnx.parser.parse_model(HEAD + text)
    generator = np.random.default_rng(1)
    for info in model.graph.value_info:
        shape = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        weight = generator.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, info.name))
    del model.graph.value_info[:]
    return model


def input_of(model):
    shape = [dim.dim_value or DIMS[dim.dim_param] for dim in model.graph.input[0].type.tensor_type.shape.dim]
    return RNG.standard_normal(shape)


def run(model, names, **feeds):
    """The outputs in float64, which stock ONNX Runtime has in float."""
    defaults = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    fed = {value.name: feeds.get(value.name, defaults.get(value.name)) for value in model.graph.input}
    values = Evaluator(model).from_any(fed, names)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    floats = {name: np.float32(value) for name, value in fed.items() if name in feeds}
    for name, value in zip(names, session.run(names, floats), strict=True):
        np.testing.assert_allclose(value, values[name], rtol=2e-3, atol=2e-4)
    return values


def norm_of_difference(value, expected):
    return np.linalg.norm(value - expected) / max(np.linalg.norm(expected), 1e-3)


@pytest.mark.parametrize("case", MODELS)
def test_against_central_differences(case):
    model = model_of(MODELS[case])
    x = input_of(model)
    direction = RNG.standard_normal(x.shape)
    forward = Evaluator(model)
    ahead, behind = (forward.from_any({"x": x + s * STEP * direction}, ["y"])["y"] for s in (1, -1))
    slope = (ahead - behind) / (2 * STEP)
    seed = RNG.standard_normal(slope.shape)

    tangent = run(bngrad.jvp(model, outputs=["y"]), ["y", "y_tangent"], x=x, x_tangent=direction)["y_tangent"]
    assert norm_of_difference(tangent, slope) < 1e-6
    gradient = run(bngrad.vjp(model, outputs=["y"]), ["y", "x_grad"], x=x, y_seed=seed)["x_grad"]
    assert np.sum(gradient * direction) == pytest.approx(np.sum(seed * slope), rel=1e-6, abs=1e-9)
    rows = run(bngrad.jacobian(model, output="y"), ["x_jacobian"], x=x)["x_jacobian"]
    assert rows.shape == seed.shape + x.shape
    assert norm_of_difference(np.tensordot(seed, rows, seed.ndim), gradient) < 1e-12


@pytest.mark.parametrize("case", [*MODELS, "a factor of 0"])
def test_hessian_against_differences_of_the_gradient(case):
    model = model_of(MODELS.get(case, AT_ZERO))
    x = input_of(model) if case in MODELS else np.ones((2, 4))
    vector = RNG.standard_normal(x.shape)
    hessian = bngrad.hvp(model, loss="loss", wrt=["x"])
    first = Evaluator(bngrad.differentiate(model, loss="loss", wrt=["x"], frozen=FROZEN.get(case, ())))
    ahead, behind = (first.from_any({"x": x + s * STEP * vector}, ["x_grad"])["x_grad"] for s in (1, -1))
    values = run(hessian, ["loss", "x_grad", "x_hvp"], x=x, x_vector=vector)
    assert norm_of_difference(values["x_grad"], first.from_any({"x": x}, ["x_grad"])["x_grad"]) < 1e-12
    assert norm_of_difference(values["x_hvp"], (ahead - behind) / (2 * STEP)) < 1e-5


GROUP_NORM = (
    "g (float[N, 4, 3] x) => (float[N, 4, 3] y, float loss) "
    "<float[4] w = {1, 2, 3, 4}, float[4] b = {0, 1, 0, 2}> { y = GroupNormalization <num_groups = 2> (x, w, b)"
    + SQUARES
)
JOINT = {
    "frozen batch norm": (MODELS["frozen batch norm"], ["x", "w", "b", "k"], 1),
    "batch norm in training mode": (MODELS["batch norm in training mode"], ["x", "w", "k"], 1),
    "batch norm, ReLU": (MODELS["batch norm, ReLU"], ["w", "b", "k"], 1),
    "group norm": (GROUP_NORM, ["x", "w"], 1),
}


@pytest.mark.parametrize("case", JOINT)
def test_weights_and_inputs_together(case):
    text, wrt, count = JOINT[case]
    model = model_of(text)
    product = bngrad.hvp(model, loss="loss", wrt=wrt, frozen=FROZEN.get(case, ()))
    defaults = {t.name: onnx.numpy_helper.to_array(t) for t in product.graph.initializer}
    defaults["x"] = input_of(model)
    vectors = {f"{name}_vector": RNG.standard_normal(defaults[name].shape) for name in wrt}
    evaluator = Evaluator(product)

    def at(sign, outputs):
        moved = {name: defaults[name] + sign * STEP * vectors[f"{name}_vector"] for name in wrt}
        return evaluator.from_any({**defaults, **vectors, **moved}, outputs)

    gradients, products = ([f"{name}_{what}" for name in wrt] for what in ("grad", "hvp"))
    ahead, middle, behind = at(1, gradients), at(0, products), at(-1, gradients)
    for name in wrt:
        expected = (ahead[f"{name}_grad"] - behind[f"{name}_grad"]) / (2 * STEP)
        assert norm_of_difference(middle[f"{name}_hvp"], expected) < 1e-5
    assert sum(node.op_type == "BatchNormalizationGradGrad" for node in product.graph.node) == count


def test_a_product_is_differentiated_again():
    """A loss of forces: the gradient of an energy is a part of what is trained."""
    model = model_of(MODELS["batch norm in training mode"])
    forces = bngrad.vjp(model, outputs=["y"])
    graph = bngrad.differentiate(forces, loss_fn="mse", prediction="x_grad", wrt=["k"])
    x = input_of(model)
    fed = {"x": x, "y_seed": np.ones((2, 3, 1, 1)), "target": np.zeros(x.shape)}
    weight = next(onnx.numpy_helper.to_array(t) for t in graph.graph.initializer if t.name == "k")
    defaults = {t.name: onnx.numpy_helper.to_array(t) for t in graph.graph.initializer}
    direction, evaluator = RNG.standard_normal(weight.shape), Evaluator(graph)
    at = [
        evaluator.from_any({**defaults, **fed, "k": weight + s * STEP * direction}, ["loss_1", "k_grad"])
        for s in (1, 0, -1)
    ]
    slope = (at[0]["loss_1"] - at[2]["loss_1"]) / (2 * STEP)
    assert np.sum(at[1]["k_grad"] * direction) == pytest.approx(float(slope), rel=1e-6)


def test_a_product_is_trained():
    forces = bngrad.vjp(model_of(MODELS["frozen batch norm"]), outputs=["y"])
    step = bngrad.training_step(forces, loss_fn="mse", prediction="x_grad", wrt=["k"], frozen=["*"])
    trainer = bngrad.Trainer(step, learning_rate=0.01)
    x = RNG.standard_normal((2, 2, 5, 5)).astype(np.float32)
    losses = [
        trainer.step(x=x, y_seed=np.ones((2, 3, 1, 1), np.float32), target=np.zeros(x.shape, np.float32))
        for _ in range(5)
    ]
    assert losses == sorted(losses, reverse=True)


def test_a_step_with_batch_norms_of_the_product_in_training_mode_is_refused():
    forces = bngrad.vjp(model_of(MODELS["batch norm in training mode"]), outputs=["y"])
    with pytest.raises(ModelError, match=r"is a training graph already: it has bngrad\.BatchNormalizationGrad"):
        bngrad.training_step(forces, loss_fn="mse", prediction="x_grad", wrt=["k"])


def test_the_hessian_of_a_linear_loss_is_0():
    model = model_of(
        "g (float[N] x) => (float loss) <float t = {3}> { y = Mul (x, t) loss = ReduceSum <keepdims = 0> (y) }"
    )
    values = run(bngrad.hvp(model, wrt=["x"]), ["x_grad", "x_hvp"], x=np.arange(3.0), x_vector=np.ones(3))
    np.testing.assert_array_equal(values["x_grad"], [3, 3, 3])
    np.testing.assert_array_equal(values["x_hvp"], [0, 0, 0])


def test_the_model_is_of_the_type_of_the_source(tmp_path):
    model = model_of(MODELS["softmax"])
    onnx.save(model, tmp_path / "model.onnx")
    assert bngrad.vjp(tmp_path / "model.onnx", outputs=["y"]) == bngrad.vjp(model, outputs=["y"])
    graph = bngrad.vjp(onnx.load(tmp_path / "model.onnx"), outputs=["y"]).graph
    assert [value.name for value in graph.output] == ["y", "loss", "x_grad"]


def test_a_seed_of_another_size_fails():
    model = bngrad.vjp(model_of(MODELS["softmax"]), outputs=["y"])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    with pytest.raises(Exception, match="Reshape"):
        session.run(None, {"x": np.ones((3, 4), np.float32), "y_seed": np.ones((1, 4), np.float32)})


REFUSALS = {
    "an unknown output": ("vjp", VECTORS, SOFTMAX, {"outputs": ["z"]}, "'z' is not an output"),
    "an integer output": (
        "vjp", "g (float[N] x) => (int64[1] y) ", "{ y = Shape (x) }", {"outputs": ["y"]}, "expected a float",
    ),
    "no float output": ("jvp", "g (float[N] x) => (int64[1] y) ", "{ y = Shape (x) }", {}, "no float output"),
    "several outputs": ("jacobian", VECTORS, SOFTMAX, {}, "name one with output="),
    "no float input": (
        "vjp", "g (int64[N] x) => (float[N] y) ", "{ y = Cast <to = 1> (x) }", {}, "no float input of the model",
    ),
    "a name that is taken": (
        "vjp", "g (float[N] x, float[N] y_seed) => (float[N] y) ", "{ y = Mul (x, y_seed) }", {}, "already",
    ),
    "names in a string": ("jvp", VECTORS, SOFTMAX, {"wrt": "x"}, "expected a sequence of names"),
    "no gradient": (
        "vjp", "g (float[N] x) => (float[N] y) ", "{ y = com.unknown.Op (x) }", {"wrt": ["x"]}, "Op node",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case):
    function, head, body, options, message = REFUSALS[case]
    model = onnx.parser.parse_model(HEAD.replace("21]", '21, "com.unknown" : 1]') + head + body)
    with pytest.raises((InputError, ModelError, UnsupportedNodeError), match=re.escape(message)):
        getattr(bngrad, function)(model, **options)
