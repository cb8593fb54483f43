"""Blocks: what they compute, the models that they make, and what they refuse."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnxruntime
import pytest

from bngrad.ort_training import onnxblock
from bngrad.ort_training.errors import OrtTrainingError
from bngrad.ort_training.onnxblock import blocks, loss, model_accessor, optim

X = np.array([[-1.5, 0.25, 2], [0.5, -3, 1]], np.float32)
TARGET = np.array([[0, 1, 0.5], [1, 0, 1]], np.float32)


def base_model(opset=17):
    """x [2, 3] and y = x, so that blocks have an input and an output to read."""
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : {opset}]>
        base (float[2, 3] x) => (float[2, 3] y) {{ y = Identity(x) }}""")


class Forward(onnxblock.ForwardBlock):
    """The outputs of a function that builds on the names given."""

    def __init__(self, build):
        super().__init__()
        self._build = build

    def build(self, *names):
        return self._build(*names)


class Training(onnxblock.TrainingBlock):
    """The mean square of a linear map."""

    def build(self, y):
        return loss.MSELoss()(y)


def built(build, *names, model=None):
    block = Forward(build)
    with onnxblock.base(base_model() if model is None else model):
        block(*names)
    return block.to_model_proto()


def run(model, **feeds):
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return session.run(None, {name: feeds[name] for name in names})


LOGISTIC = 1 / (1 + np.exp(-X))
BCE = -(TARGET * np.log(LOGISTIC) + (1 - TARGET) * np.log(1 - LOGISTIC))
POSITIVE = -(2 * TARGET * np.log(LOGISTIC) + (1 - TARGET) * np.log(1 - LOGISTIC))
BLOCKS = {
    "Add": (lambda y: blocks.Add()(y, "x"), X + X),
    "Sub": (lambda y: blocks.Sub()(y, blocks.Constant(2)()), X - 2),
    "Mul": (lambda y: blocks.Mul()(y, "x"), X * X),
    "Div": (lambda y: blocks.Div()(blocks.Constant(1.0)(), y), 1 / X),
    "Pow": (blocks.Pow(3), X**3),
    "ReduceMean": (blocks.ReduceMean(), X.mean(keepdims=True)),
    "ReduceSum": (blocks.ReduceSum(keepdims=False), X.sum()),
    "Sigmoid": (blocks.Sigmoid(), LOGISTIC),
    "Log": (lambda y: blocks.Log()(blocks.Abs()(y)), np.log(np.abs(X))),
    "Neg": (blocks.Neg(), -X),
    "Clip": (blocks.Clip(-1, 1), np.clip(X, -1, 1)),
    "Clip below": (blocks.Clip(clip_min=0), np.maximum(X, 0)),
    "Clip above": (blocks.Clip(clip_max=0), np.minimum(X, 0)),
    "Cast": (blocks.Cast(onnx.TensorProto.INT64), X.astype(np.int64)),
    "PassThrough": (blocks.PassThrough(), X),
    "InputLike": (lambda y: blocks.Sub()(y, blocks.InputLike("y")("target")), X - TARGET),
    "InputLike of a computed value": (
        lambda y: blocks.Sub()(y, blocks.InputLike(blocks.Neg()(y))("target")), X - TARGET,
    ),
    "MSELoss": (loss.MSELoss(), np.mean((X - TARGET) ** 2)),
    "MSELoss none": (loss.MSELoss("none"), (X - TARGET) ** 2),
    "MSELoss of an input": (lambda y: loss.MSELoss("sum")(blocks.Neg()(y), "x"), np.sum((-2 * X) ** 2)),
    "L1Loss": (loss.L1Loss("sum"), np.sum(np.abs(X - TARGET))),
    "L1Loss none": (loss.L1Loss("none"), np.abs(X - TARGET)),
    "BCEWithLogitsLoss": (loss.BCEWithLogitsLoss(), BCE.mean()),
    "BCEWithLogitsLoss none": (loss.BCEWithLogitsLoss(reduction="none"), BCE),
    "BCEWithLogitsLoss weight": (
        loss.BCEWithLogitsLoss([1, 2, 3], "sum"), np.sum(BCE * [1, 2, 3]),
    ),
    "BCEWithLogitsLoss pos_weight": (loss.BCEWithLogitsLoss(pos_weight=2.0), POSITIVE.mean()),
}  # fmt: skip


@pytest.mark.parametrize(("build", "want"), BLOCKS.values(), ids=BLOCKS)
@pytest.mark.parametrize("opset", [14, 18])
def test_block(build, want, opset):
    (got,) = run(built(build, "y", model=base_model(opset)), x=X, target=TARGET)
    assert got.shape == np.shape(want)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


LABELS = np.array([2, 0])
PROBABILITIES = np.exp(X) / np.exp(X).sum(1, keepdims=True)
NEGATIVE_LOG = -np.log(PROBABILITIES[[0, 1], LABELS])
CROSS_ENTROPIES = {
    "mean": ({}, NEGATIVE_LOG.mean()),
    "sum": ({"reduction": "sum"}, NEGATIVE_LOG.sum()),
    "none": ({"reduction": "none"}, NEGATIVE_LOG),
    "weights": ({"weight": np.array([1, 2, 4.0])}, (NEGATIVE_LOG * [4, 1]).sum() / 5),
    "ignored": ({"ignore_index": 0}, NEGATIVE_LOG[0]),
}


@pytest.mark.parametrize(("arguments", "want"), CROSS_ENTROPIES.values(), ids=CROSS_ENTROPIES)
def test_cross_entropy(arguments, want):
    model = built(loss.CrossEntropyLoss(**arguments), "y")
    (got,) = run(model, x=X, labels=LABELS)
    assert got.shape == np.shape(want)
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_labels_may_be_computed():
    def build(y):
        encoded = blocks.LabelEncoder(default_int64=1, keys_int64s=[7, 9], values_int64s=[2, 0])("keys")
        return loss.CrossEntropyLoss()(y, encoded)

    model = base_model()
    model.graph.input.append(onnx.helper.make_tensor_value_info("keys", onnx.TensorProto.INT64, [2]))
    model_with_loss = built(build, "y", model=model)
    assert [value.name for value in model_with_loss.graph.input] == ["x", "keys"]
    (got,) = run(model_with_loss, x=X, keys=np.array([7, 9]))
    np.testing.assert_allclose(got, NEGATIVE_LOG.mean(), rtol=1e-5)


def test_two_losses_have_a_target_each():
    def build(y):
        first, second = (loss.L1Loss()(y, target_name=name) for name in ("one", "two"))
        return blocks.Add()(first, second)

    (got,) = run(built(build, "y"), x=X, one=X, two=TARGET)
    np.testing.assert_allclose(got, np.abs(X - TARGET).mean(), rtol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
def test_linear(bias):
    legacy = np.random.RandomState(4)
    weight, offset = (legacy.standard_normal(shape).astype(np.float32) for shape in ((3, 5), 5))
    np.random.seed(4)  # noqa: NPY002 - the generator of the block
    (got,) = run(built(blocks.Linear(3, 5, bias, alpha=0.5, beta=2.0), "y"), x=X)
    np.testing.assert_allclose(got, X @ weight / 2 + 2 * offset * bias, rtol=1e-5)


def test_sequence():
    (got,) = run(built(lambda y: blocks.SequenceConstruct()(y, "x"), "y"), x=X)
    assert [part.tolist() for part in got] == [X.tolist(), X.tolist()]


def test_norm_is_the_old_op():
    node = built(lambda y: blocks.ReduceAllL2()(y, "x"), "y").graph.node[-1]
    assert (node.domain, node.op_type, [*node.input]) == ("com.microsoft", "ReduceAllL2", ["y", "x"])


def test_several_outputs_in_order():
    model = built(lambda y: (blocks.Neg()(y), y), "y")
    negative, same = run(model, x=X)
    assert np.array_equal(negative, -X)
    assert np.array_equal(same, X)


def test_names_are_counted():
    names = [output.name for _ in range(2) for output in built(blocks.Neg(), "y").graph.output]
    numbers = [int(re.fullmatch(r"onnx::neg_output::(\d+)", name)[1]) for name in names]
    assert numbers[1] == numbers[0] + 2  # one for the node


def test_base_copies_the_model():
    model = base_model()
    before = model.SerializeToString()
    with onnxblock.base(model) as accessor:
        blocks.Neg()("y")
        assert len(accessor.model.graph.node) == 2
        assert not accessor.has_path
    assert model.SerializeToString() == before


def test_empty_base_runs_on_stock():
    with onnxblock.empty_base() as accessor:
        accessor.model.graph.input.append(onnx.helper.make_tensor_value_info("x", 1, [2, 3]))
        block = Forward(blocks.Neg())
        block("x")
    (got,) = run(block.to_model_proto(), x=X)
    assert np.array_equal(got, -X)
    with onnxblock.empty_base(15) as accessor:
        versions = {entry.domain: entry.version for entry in accessor.model.opset_import}
    assert versions == {"": 15, "com.microsoft": 1}


def within(context, action):
    with context:
        action()


def labels_of_unknown_rank(y):
    return loss.CrossEntropyLoss()(blocks.ReduceMean(keepdims=False)(y))


class Named(onnxblock.Block):
    """A block with the argument of the base class."""

    def build(self):
        """Appends nothing."""


class Broken(onnxblock.Block):
    """Appends a node that reads nothing that there is."""

    def build(self, y):
        self.base.graph.node.append(onnx.helper.make_node("Add", [y, "nowhere"], ["sum"]))
        return "sum"


REFUSALS = {
    "no base": (lambda: blocks.Neg()("y"), RuntimeError, "there is no model to build on"),
    "no base for a model": (lambda: Forward(blocks.Neg())("y"), RuntimeError, "there is no model to build on"),
    "two bases": (
        lambda: within(onnxblock.base(base_model()), lambda: within(onnxblock.empty_base(), print)),
        RuntimeError,
        "there is a base model already",
    ),
    "base of nothing": (
        lambda: within(onnxblock.base(None), print), RuntimeError, "the base model is NoneType",
    ),
    "path of a model in memory": (
        lambda: within(onnxblock.base(base_model()), lambda: model_accessor.current().path),
        RuntimeError,
        "the model has no path",
    ),
    "absolute file": (lambda: Named("/x.onnx"), RuntimeError, "temp_file_name is '/x.onnx'; expected a relative"),
    "no library": (
        lambda: within(onnxblock.custom_op_library("none.so"), print), RuntimeError, "none.so does not exist",
    ),
    "two libraries": (
        lambda: within(
            onnxblock.custom_op_library(__file__), lambda: within(onnxblock.custom_op_library(__file__), print)
        ),
        RuntimeError,
        "there is a custom-op library already",
    ),
    "reduction": (lambda: loss.MSELoss("max"), RuntimeError, "reduction 'max' is not supported"),
    "weights of a matrix": (lambda: loss.CrossEntropyLoss([[1.0]]), RuntimeError, r"weight has shape \[1, 1\]"),
    "forward model too early": (lambda: Forward(print).to_model_proto(), RuntimeError, "not built yet"),
    "training model too early": (lambda: Training().to_model_proto(), RuntimeError, "not built yet"),
    "parameters too early": (
        lambda: Training().parameters(),
        RuntimeError,
        "Please build the training model first before trying to retrieve the parameters.",
    ),
    "unknown output": (lambda: built(lambda _: "z", "y"), LookupError, "'z' is not a computed value"),
    "no output": (lambda: built(lambda _: None, "y"), RuntimeError, "a block returned None; expected the name"),
    "unknown input": (lambda: built(loss.MSELoss(), "z"), LookupError, "'z' is not a computed value"),
    "unknown like": (lambda: built(blocks.InputLike("z"), "t"), LookupError, "'z' is not a computed value"),
    "scalar scores": (lambda: built(labels_of_unknown_rank, "y"), RuntimeError, "have 0 known dimensions"),
    "broken block": (lambda: built(Broken(), "y"), RuntimeError, "reads 'nowhere'|nowhere"),
    "types": (
        lambda: built(lambda y: blocks.Add()(y, blocks.Cast(onnx.TensorProto.INT64)(y)), "y"),
        RuntimeError,
        "does not pass onnx's checker",
    ),
    "no checkpoint parameters": (lambda: onnxblock.save_checkpoint(None, "c"), RuntimeError, "no parameters"),
    "no checkpoint": (
        lambda: onnxblock.load_checkpoint_to_model("none", base_model()), RuntimeError, "none cannot be read",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("action", "error", "message"), REFUSALS.values(), ids=REFUSALS)
def test_refusals(action, error, message):
    with pytest.raises(error, match=message) as raised:
        action()
    assert "\n" not in str(raised.value)


def test_context_ends_with_an_error():
    with pytest.raises(ZeroDivisionError), onnxblock.base(base_model()), onnxblock.custom_op_library(__file__):
        _ = 1 / 0
    built(blocks.Neg(), "y")
    within(onnxblock.custom_op_library(__file__), lambda: None)


def linear_model():
    return onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        linear (float[N, 2] x) => (float[N, 2] y)
            <float[2, 2] w = {1, 2, 3, 4}, float[2] b = {5, 6}, float[2] c = {7, 8}> {
            p = MatMul(x, w) q = Add(p, b) y = Mul(q, c) }""")


def trained(**requires_grad):
    block = Training()
    for name, value in requires_grad.items():
        block.requires_grad(name, not value)
        block.requires_grad(name, value)  # the last one counts
    with onnxblock.base(linear_model()):
        block("y")
    return block


@pytest.mark.parametrize(
    ("requires_grad", "trainable", "frozen", "inputs"),
    [
        ({"b": True, "w": True}, ["w", "b"], [], ["x", "target", "w", "b"]),
        ({"b": False, "w": True}, ["w"], ["b"], ["x", "target", "w", "b"]),
        ({"b": False}, [], ["b"], ["x", "target", "b"]),
        ({}, [], [], ["x", "target", "w", "b", "c", "onnx::pow_exponent::N"]),
    ],
    ids=["trainable", "some frozen", "frozen only", "none"],
)
def test_parameters(requires_grad, trainable, frozen, inputs):
    block = trained(**requires_grad)
    assert [[tensor.name for tensor in tensors] for tensors in block.parameters()] == [trainable, frozen]
    buffers = [f"{name}_grad.accumulation.buffer" for name in trainable]
    for model, further in zip(block.to_model_proto(), ([*buffers, "lazy_reset_grad"], []), strict=True):
        names = [
            re.sub(r"\d+$", "N", value.name) if "::" in value.name else value.name for value in model.graph.input
        ]
        assert names == [*inputs, *further]


def test_checkpoint_goes_into_a_model(tmp_path):
    onnxblock.save_checkpoint(trained(w=True, b=False).parameters(), tmp_path / "checkpoint")
    model = linear_model()
    for tensor in model.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(np.zeros([*tensor.dims], np.float32), tensor.name))
    onnxblock.load_checkpoint_to_model(tmp_path / "checkpoint", model)
    values = {tensor.name: onnx.numpy_helper.to_array(tensor).tolist() for tensor in model.graph.initializer}
    assert values == {"w": [[1, 2], [3, 4]], "b": [5, 6], "c": [0, 0]}


def test_nominal_checkpoint_does_not_go_into_a_model(tmp_path):
    onnxblock.save_checkpoint(trained(w=True).parameters(), tmp_path / "nominal", nominal_checkpoint=True)
    with pytest.raises(OrtTrainingError, match="is a nominal checkpoint, which has no values"):
        onnxblock.load_checkpoint_to_model(tmp_path / "nominal", linear_model())


def test_checkpoint_of_another_model_changes_nothing(tmp_path):
    onnxblock.save_checkpoint(trained(w=True, b=True).parameters(), tmp_path / "checkpoint")
    model = linear_model()
    model.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(np.zeros(3, np.float32), "b"))
    before = model.SerializeToString()
    with pytest.raises(
        OrtTrainingError, match=r"parameter 'b' is float \[2\] in .*, but float \[3\] in the model"
    ):
        onnxblock.load_checkpoint_to_model(tmp_path / "checkpoint", model)
    assert model.SerializeToString() == before


OPTIMIZERS = {
    "AdamW": (
        optim.AdamW(False, (0.8, 0.99), 1e-5, 0.1),
        ["second_order_moments"],
        {"alpha": 0.8, "beta": 0.99, "epsilon": 1e-5, "weight_decay": 0.1, "correct_bias": 0, "adam_mode": 1},
    ),
    "AdamW by default": (
        optim.AdamW(),
        ["second_order_moments"],
        {"alpha": 0.9, "beta": 0.999, "epsilon": 1e-6, "weight_decay": 0, "correct_bias": 1, "adam_mode": 1},
    ),
    "SGD": (optim.SGD(), [], {}),
    "clipped": (optim.SGD(optim.ClipGradNorm(2)), [], {}),
}


@pytest.mark.parametrize(("block", "inputs", "attributes"), OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_optimizer_model(block, inputs, attributes):
    parameters = trained(w=True, b=True).parameters()
    with onnxblock.empty_base(17) as accessor:
        output = block(parameters)
    model = block.to_model_proto()
    assert model == accessor.model
    names = ["learning_rate", "step", "params", "gradients", "first_order_moments", *inputs]
    assert [value.name for value in model.graph.input] == names
    (result,) = model.graph.output
    assert (result.name, result.type.tensor_type.elem_type) == (output, onnx.TensorProto.BOOL)
    update = model.graph.node[-1]
    actual = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in update.attribute}
    assert actual == pytest.approx(attributes)
    clips = [node for node in model.graph.node[:-1] if node.op_type == "InplaceClipGradNorm"]
    gradients = clips[0].output[0] if clips else "gradients"
    if update.op_type == "SGDOptimizerV2":
        assert [*update.input] == ["learning_rate", "params", gradients]
    else:
        assert [*update.input] == ["learning_rate", "step", "params", gradients, "first_order_moments", *inputs]
