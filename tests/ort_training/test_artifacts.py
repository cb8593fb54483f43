"""The files, arguments and refusals of `generate_artifacts`, and where it is right and 1.19.2 is not."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import onnxruntime_extensions
import pytest

import bngrad.ort_training
from bngrad.errors import BngradError, BngradWarning
from bngrad.ort_training import api, artifacts, onnxblock
from bngrad.ort_training.artifacts import LossType, OptimType, generate_artifacts
from bngrad.ort_training.checkpoint_file import read_checkpoint
from bngrad.ort_training.training_model import STATE_KEY
from ort_training.artifact_cases import CASES, CNN_OPTIONS, MLP_DATA

MLP = CASES["mse"].model()
"""No test changes it."""
MSE = {"requires_grad": ["w1"], "loss": LossType.MSELoss}
BASIC = ["checkpoint", "eval_model.onnx", "training_model.onnx"]


CONVERTS = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""ONNX Runtime's converter leaves a file open."""


def linear(shape="N, 6", weight=(6, 3), dtype="float", outputs="N, 3"):
    """y = x w."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        linear ({dtype}[{shape}] x) => ({dtype}[{outputs}] y) {{ y = MatMul(x, w) }}""")
    value = np.random.default_rng(0).normal(size=weight)
    model.graph.initializer.append(onnx.numpy_helper.from_array(value.astype(numpy_type(dtype)), "w"))
    return model


def renamed(model, old, new):
    """A copy of a model with another name for a value."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for node in result.graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]
    return result


def tensorflow_batch_norm():
    return onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "tf" : 1]>
        m (float[4, 2, 2, 3] x) => (float loss) <float[3] scale = {1, 2, 3}, float[3] bias = {0, 0, 0},
            float[3] mean = {0, 0, 0}, float[3] var = {1, 1, 1}> {
            y, m, v, r1, r2, r3 = tf.FusedBatchNormV3<is_training = 1>(x, scale, bias, mean, var)
            loss = ReduceMean<keepdims = 0>(y) }""")


def numpy_type(dtype):
    return {"float": np.float32, "double": np.float64, "float16": np.float16}[dtype]


def generated(folder, model, **options):
    """The training session, the evaluation session and the initial values of the parameters and buffers."""
    generate_artifacts(model, artifact_directory=folder, **options)
    checkpoint = read_checkpoint(folder / "checkpoint")
    held = checkpoint.trainable | checkpoint.frozen
    held |= {f"{name}_grad.accumulation.buffer": np.zeros_like(v) for name, v in checkpoint.trainable.items()}
    return session(folder / "training_model.onnx"), session(folder / "eval_model.onnx"), held


def session(path):
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def call(training, held, **data):
    """The outputs of a training model by name, in the state after the call."""
    names = [output.name for output in training.get_outputs()]
    outputs = training.run(None, {**data, **held, "lazy_reset_grad": np.array([True])})
    return dict(zip(names, outputs, strict=True))


def test_signature_is_the_old_one():
    want = {
        "model": inspect.Parameter.empty,
        "requires_grad": None,
        "frozen_params": None,
        "loss": None,
        "optimizer": None,
        "artifact_directory": None,
        "prefix": "",
        "ort_format": False,
        "custom_op_library": None,
        "additional_output_names": None,
        "nominal_checkpoint": False,
        "loss_input_names": None,
    }
    parameters = inspect.signature(generate_artifacts).parameters
    positional = [p for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert {p.name: p.default for p in positional} == want
    assert [p.name for p in positional] == [*want]


def test_enums_and_modules_are_the_old_ones():
    assert {loss.name: loss.value for loss in LossType} == {
        "MSELoss": 1, "CrossEntropyLoss": 2, "BCEWithLogitsLoss": 3, "L1Loss": 4,
    }  # fmt: skip
    assert {optimizer.name: optimizer.value for optimizer in OptimType} == {"AdamW": 1, "SGD": 2}
    assert (bngrad.ort_training.artifacts, bngrad.ort_training.onnxblock) == (artifacts, onnxblock)


@pytest.mark.parametrize(
    ("options", "files"),
    [
        ({}, BASIC),
        ({"optimizer": OptimType.AdamW}, [*BASIC, "optimizer_model.onnx"]),
        ({"optimizer": onnxblock.optim.SGD(onnxblock.optim.ClipGradNorm(1.0))}, [*BASIC, "optimizer_model.onnx"]),
        ({"nominal_checkpoint": True}, [*BASIC, "nominal_checkpoint"]),
        ({"prefix": "v2_"}, [f"v2_{name}" for name in BASIC]),
        ({"prefix": "sub/"}, [f"sub/{name}" for name in BASIC]),
        (
            {"ort_format": True, "optimizer": OptimType.SGD},
            [
                *BASIC,
                "optimizer_model.onnx",
                *(
                    f"{model}_model.{suffix}"
                    for model in ("training", "eval", "optimizer")
                    for suffix in ("ort", "required_operators.config")
                ),
            ],
        ),
    ],
    ids=["least", "AdamW", "clipped SGD", "nominal", "prefix", "prefix with a folder", "ORT format"],
)
@CONVERTS
def test_files(tmp_path, options, files):
    (tmp_path / "sub").mkdir()
    generate_artifacts(MLP, artifact_directory=tmp_path, **MSE, **options)
    written = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(written) == sorted(files)


def test_models_from_a_path_and_in_the_current_folder(tmp_path, monkeypatch):
    onnx.save(
        CASES["mse"].model(),
        tmp_path / "mlp.onnx",
        save_as_external_data=True,
        location="mlp.data",
        size_threshold=0,
    )
    monkeypatch.chdir(tmp_path)
    for model in ("mlp.onnx", tmp_path / "mlp.onnx"):
        generate_artifacts(model, **MSE)
        assert {*BASIC} <= {path.name for path in tmp_path.iterdir()}
        assert [*read_checkpoint("checkpoint").trainable] == ["w1"]


def test_folder_as_bytes(tmp_path):
    generate_artifacts(MLP, artifact_directory=str(tmp_path).encode(), **MSE)
    assert sorted(path.name for path in tmp_path.iterdir()) == BASIC


@CONVERTS
def test_training_in_ort_format_is_the_same(tmp_path):
    training, _, held = generated(tmp_path, MLP, ort_format=True, **MSE)
    data = {name: np.ones(shape, np.float32) for name, shape in MLP_DATA.items()}
    converted = session(tmp_path / "training_model.ort")
    want, got = (call(model, held, **data) for model in (training, converted))
    assert all(np.array_equal(got[name], want[name]) for name in want)
    assert STATE_KEY in converted.get_modelmeta().custom_metadata_map


def test_state_names_the_new_values(tmp_path):
    training, _, _ = generated(
        tmp_path, CASES["batch norm"].model(), loss=LossType.CrossEntropyLoss, **CNN_OPTIONS
    )
    state = json.loads(training.get_modelmeta().custom_metadata_map[STATE_KEY])
    buffers = {f"{name}_grad.accumulation.buffer" for name in CNN_OPTIONS["requires_grad"]}
    assert state.keys() == buffers | {*CNN_OPTIONS["frozen_params"]}
    assert {*state.values()} < {output.name for output in training.get_outputs()}


REFUSALS = {
    "no model": (3, {}, RuntimeError, "model is int; expected an onnx.ModelProto or a path"),
    "no file": ("nowhere.onnx", {}, FileNotFoundError, "nowhere.onnx does not exist"),
    "not a list": (MLP, {"requires_grad": "w1"}, RuntimeError, "requires_grad is the string 'w1'"),
    "both lists": (MLP, {**MSE, "frozen_params": ["w1"]}, RuntimeError, "'w1' cannot be in both requires_grad"),
    "unknown weight": (
        MLP,
        {**MSE, "requires_grad": ["w3"]},
        RuntimeError,
        "'w3' is not an initializer or input of this model, which has 'b1'",
    ),
    "computed weight": (MLP, {**MSE, "requires_grad": ["hidden"]}, RuntimeError, "'hidden' is not an initializer"),
    "unknown loss": (MLP, {**MSE, "loss": "MSELoss"}, RuntimeError, "loss is str; expected a LossType"),
    "loss class": (MLP, {**MSE, "loss": onnxblock.loss.MSELoss}, RuntimeError, "expected a LossType or an onnxb"),
    "no scalar": (
        MLP,
        {"requires_grad": ["w1"]},
        RuntimeError,
        r"loss 'y' \(float\[N, 3\]\) is not a float scalar",
    ),
    "loss of elements": (
        MLP,
        {**MSE, "loss": onnxblock.loss.MSELoss("none")},
        RuntimeError,
        "is not a float scalar; expected one element",
    ),
    "unknown optimizer": (
        MLP,
        {**MSE, "optimizer": "AdamW"},
        TypeError,
        "optimizer is str; expected an OptimType",
    ),
    "nothing to optimize": (
        MLP,
        {"loss": LossType.MSELoss, "optimizer": OptimType.SGD},
        RuntimeError,
        "no parameter is trainable, so an optimizer has nothing to update; name parameters in requires_grad",
    ),
    "unknown output": (MLP, {**MSE, "additional_output_names": ["z"]}, LookupError, "'z' is not a computed value"),
    "unknown loss input": (MLP, {**MSE, "loss_input_names": ["z"]}, LookupError, "'z' is not a computed value"),
    "no library": (MLP, {**MSE, "custom_op_library": "none.so"}, RuntimeError, "library none.so does not exist"),
    "no folder": (MLP, {**MSE, "prefix": "none/"}, FileNotFoundError, "none does not exist; create it first"),
    "no target": (MLP, {**MSE, "target": "gpu"}, RuntimeError, "target is 'gpu'; expected one of stock, ort"),
    "ORT format of ORT's ops": (
        MLP,
        {**MSE, "target": "ort", "ort_format": True},
        RuntimeError,
        "ort_format needs target 'stock'",
    ),
    "no gradient": (
        onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
            m (float[2] x) => (float y) <float[2] w = {1, 2}> {
                r = Round(w) p = Mul(x, r) y = ReduceMean<keepdims = 0>(p) }"""),
        {"requires_grad": ["w"]},
        RuntimeError,
        "does not depend on 'w'",
    ),
    "labels of a vector": (
        linear("N, 6", (6,), outputs="N"),
        {"requires_grad": ["w"], "loss": LossType.CrossEntropyLoss},
        RuntimeError,
        r"scores 'y' have 1 known dimensions; expected \[N, C, ...\], with classes on axis 1",
    ),
    "double logits": (
        linear(dtype="double"),
        {"requires_grad": ["w"], "loss": LossType.BCEWithLogitsLoss},
        RuntimeError,
        "logits 'y' are double, for which ONNX Runtime has no Softplus; expected float or float16",
    ),
    "taken name": (
        renamed(MLP, "hidden", "lazy_reset_grad"),
        MSE,
        RuntimeError,
        "has a value or node 'lazy_reset_g",
    ),
    "batch norm of TensorFlow": (
        tensorflow_batch_norm(),
        {"requires_grad": ["scale"]},
        RuntimeError,
        "FusedBatchNormV3 .* cannot be put into inference mode; expected ONNX's BatchNormalization",
    ),
    "class weights": (
        linear(),
        {"requires_grad": ["w"], "loss": onnxblock.loss.CrossEntropyLoss(weight=[1, 2])},
        RuntimeError,
        "weight has 2 elements, but 'y' has 3 classes on axis 1",
    ),
}


@pytest.mark.parametrize(("model", "options", "error", "message"), REFUSALS.values(), ids=REFUSALS)
def test_refusals_write_nothing(tmp_path, model, options, error, message):
    kept = tmp_path / "training_model.onnx"
    kept.write_bytes(b"old")
    with pytest.raises(error, match=message) as raised:
        generate_artifacts(model, artifact_directory=tmp_path, **options)
    assert "\n" not in str(raised.value)
    assert issubclass(raised.type, BngradError) or error is FileNotFoundError
    assert [*tmp_path.iterdir()] == [kept]
    assert kept.read_bytes() == b"old"


def test_models_beyond_the_limit_of_protobuf_need_a_path(tmp_path, monkeypatch):
    monkeypatch.setattr(artifacts, "_MAX_PROTO_BYTES", 100)
    with pytest.raises(RuntimeError, match="the model has more than 2 GB; pass its path"):
        generate_artifacts(MLP, artifact_directory=tmp_path, **MSE)
    onnx.save(MLP, tmp_path / "mlp.onnx")
    generate_artifacts(tmp_path / "mlp.onnx", artifact_directory=tmp_path, **MSE)


@pytest.mark.parametrize("name", ["checkpoint", "eval_model.onnx", "training_model.onnx"])
def test_a_folder_of_the_name_of_a_file(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(RuntimeError, match=f"{name} is a folder, where a file is to be written") as raised:
        generate_artifacts(linear(), requires_grad=["w"], loss=LossType.MSELoss, artifact_directory=tmp_path)
    assert isinstance(raised.value, BngradError)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_trainable_types_differ(tmp_path):
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        m (float[2] x) => (float y) <float[2] a = {1, 2}, double[2] b = {1, 2}> {
            p = Mul(x, a) c = Cast<to = 1>(b) q = Mul(p, c) y = ReduceSum<keepdims = 0>(q) }""")
    options = {"requires_grad": ["a", "b"], "optimizer": OptimType.SGD}
    with pytest.raises(RuntimeError, match="'a' is float and 'b' is double; expected one type for all"):
        generate_artifacts(model, artifact_directory=tmp_path, **options)


WARNINGS = {
    "idle statistics": (
        CASES["batch norm"].model(),
        CNN_OPTIONS | {"frozen_params": ["mean1", "var1"]},
        "the running statistics 'mean2' and 'var2' are not in the checkpoint",
    ),
    "unknown frozen parameter": (
        CASES["batch norm"].model(),
        CNN_OPTIONS | {"frozen_params": [*CNN_OPTIONS["frozen_params"], "mean3"]},
        "frozen_params has 'mean3', which the model has no initializer of",
    ),
    "merged weights": (
        onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
            m (float[N, 2] x) => (float[N, 2] y) <float[2, 2] w = {1, 2, 3, 4}, float[2] zeros = {0, 0}> {
                h = Gemm(x, w, zeros) y = Gemm(h, w, zeros) }"""),
        {"requires_grad": ["w", "zeros"]},
        "'zeros' is a weight of .* exporters merge equal initial values",
    ),
}


@pytest.mark.parametrize(("model", "options", "message"), WARNINGS.values(), ids=WARNINGS)
def test_warnings_name_the_caller(tmp_path, model, options, message):
    with pytest.warns(BngradWarning, match=message) as caught:
        generate_artifacts(model, artifact_directory=tmp_path, loss=LossType.CrossEntropyLoss, **options)
    assert [warning.filename for warning in caught] == [__file__]


def test_batch_norm_in_training_form_evaluates_with_what_training_moved(tmp_path):
    losses = []
    for name in ("batch norm", "batch norm in training form"):
        case, folder = CASES[name], tmp_path / name
        folder.mkdir()
        training, evaluation, held = generated(folder, case.model(), loss=LossType.CrossEntropyLoss, **CNN_OPTIONS)
        data = dict(zip(case.data, next(case.batches()), strict=True))
        outputs = call(training, held, **data)
        state = json.loads(training.get_modelmeta().custom_metadata_map[STATE_KEY])
        moved = held | {old: outputs[new] for old, new in state.items()}
        assert all(np.any(moved[name] != held[name]) for name in CNN_OPTIONS["frozen_params"])
        parameters = [*CNN_OPTIONS["requires_grad"], *CNN_OPTIONS["frozen_params"]]
        losses.append(
            [
                float(evaluation.run(None, {**data, **{name: values[name] for name in parameters}})[0])
                for values in (held, moved)
            ]
        )
    usual, in_training_form = losses
    assert usual[0] != usual[1]
    assert in_training_form == usual


def test_new_statistic_as_an_output(tmp_path):
    case = CASES["batch norm in training form"]
    options = CNN_OPTIONS | {"loss": LossType.CrossEntropyLoss, "additional_output_names": ["new_mean1"]}
    training, evaluation, held = generated(tmp_path, case.model(), **options)
    data = dict(zip(case.data, next(case.batches()), strict=True))
    outputs = call(training, held, **data)
    state = json.loads(training.get_modelmeta().custom_metadata_map[STATE_KEY])
    assert [output.name for output in training.get_outputs()][1] == "new_mean1"
    assert state["mean1"] != "new_mean1"
    assert np.array_equal(outputs["new_mean1"], outputs[state["mean1"]])
    parameters = {name: held[name] for name in CNN_OPTIONS["requires_grad"] + CNN_OPTIONS["frozen_params"]}
    assert np.array_equal(evaluation.run(["new_mean1"], data | parameters)[0], held["mean1"])


def test_dropout_is_off_in_evaluation(tmp_path):
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        m (float[4] x) => (float y) <float[4] w = {1, 2, 3, 4}, float ratio = {0.5}, bool on = {1}> {
            p = Mul(x, w) d, mask = Dropout(p, ratio, on) y = ReduceSum<keepdims = 0>(d) }""")
    _, evaluation, _ = generated(tmp_path, model, requires_grad=["w"])
    (dropout,) = [n for n in onnx.load(tmp_path / "eval_model.onnx").graph.node if n.op_type == "Dropout"]
    assert not dropout.input[2]
    x, w = np.ones(4, np.float32), np.arange(1, 5, dtype=np.float32)
    assert evaluation.run(None, {"x": x, "w": w}) == [10]


def softmax(scores, axis):
    powers = np.exp(scores - scores.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


@pytest.mark.parametrize(
    "weight", [np.array([0.5, 1, 3], np.float32), np.array([0.5, 1, 3]), [0.5, 1, 3]], ids=str
)
def test_class_weights(tmp_path, rng, weight):
    options = {"requires_grad": ["w"], "loss": onnxblock.loss.CrossEntropyLoss(weight=weight)}
    training, _, held = generated(tmp_path, linear(), **options)
    x, labels = rng.normal(size=(5, 6)).astype(np.float32), np.array([0, 1, 2, 2, 0])
    outputs = call(training, held, x=x, labels=labels)
    p, weights = softmax(x @ held["w"], 1), np.asarray(weight)[labels]
    loss = np.sum(-np.log(p[np.arange(5), labels]) * weights) / np.sum(weights)
    gradient = x.T @ ((p - np.eye(3)[labels]) * weights[:, None] / np.sum(weights))
    np.testing.assert_allclose(outputs[training.get_outputs()[0].name], loss, rtol=1e-5)
    np.testing.assert_allclose(outputs["w_grad.accumulation.buffer_new"], gradient, rtol=1e-5, atol=1e-6)


def test_classes_are_on_axis_1(tmp_path, rng):
    options = {"requires_grad": ["w"], "loss": LossType.CrossEntropyLoss}
    training, _, held = generated(tmp_path, linear("N, 5, 6", outputs="N, 5, 3"), **options)
    assert training.get_inputs()[1].shape == ["N", 3]
    x, labels = rng.normal(size=(4, 5, 6)).astype(np.float32), rng.integers(0, 5, (4, 3))
    loss = call(training, held, x=x, labels=labels)[training.get_outputs()[0].name]
    p = softmax(x @ held["w"], 1)
    want = -np.mean(np.log(np.take_along_axis(p, labels[:, None], 1)))
    np.testing.assert_allclose(loss, want, rtol=1e-5)


@pytest.mark.parametrize(("dtype", "size"), [("float", 1e4), ("float16", 50)])
def test_bce_does_not_overflow(tmp_path, dtype, size):
    options = {"requires_grad": ["w"], "loss": LossType.BCEWithLogitsLoss}
    training, _, held = generated(tmp_path, linear("N, 1", (1, 2), dtype, outputs="N, 2"), **options)
    x = np.array([[size], [-size]], numpy_type(dtype))
    held["w"][:] = 1
    target = np.array([[1, 0], [1, 0]], x.dtype)
    outputs = call(training, held, x=x, target=target)
    # 0 where the logit has the sign of its target, else |logit|: of four elements, two.
    assert outputs[training.get_outputs()[0].name] == size / 2
    assert outputs["w_grad.accumulation.buffer_new"].tolist() == [[size / 4, size / 4]]


class PartlyWeighted(onnxblock.Block):
    """mean(y^2) + 0.5 sum(|y|): only the second term is weighted, so that shapes [] and [1] are added."""

    def build(self, y):
        blocks = onnxblock.blocks
        total = blocks.ReduceSum(keepdims=False)(blocks.Abs()(y))
        half = blocks.Mul()(blocks.Constant(0.5)(), total)
        return blocks.Add()(blocks.ReduceMean(keepdims=False)(blocks.Pow(2.0)(y)), half)


def test_scalar_and_weighted_terms(tmp_path, rng):
    training, _, held = generated(tmp_path, linear(), requires_grad=["w"], loss=PartlyWeighted())
    x = rng.normal(size=(5, 6)).astype(np.float32)
    outputs = call(training, held, x=x)
    y = x @ held["w"]
    np.testing.assert_allclose(
        outputs[training.get_outputs()[0].name], [np.mean(y**2) + np.abs(y).sum() / 2], rtol=1e-5
    )
    np.testing.assert_allclose(
        outputs["w_grad.accumulation.buffer_new"], x.T @ (2 * y / y.size + np.sign(y) / 2), rtol=1e-4
    )


def test_gradient_with_respect_to_an_input(tmp_path, rng):
    training, _, held = generated(tmp_path, linear(), requires_grad=["w", "x"], loss=LossType.MSELoss)
    x, target = rng.normal(size=(5, 6)).astype(np.float32), rng.normal(size=(5, 3)).astype(np.float32)
    held["x_grad.accumulation.buffer"] = np.zeros_like(x)
    outputs = call(training, held, x=x, target=target)
    want = 2 * (x @ held["w"] - target) / 15 @ held["w"].T
    np.testing.assert_allclose(outputs["x_grad.accumulation.buffer_new"], want, rtol=1e-4, atol=1e-6)


def custom_model(graph):
    """A model with ai.onnx.contrib.Inverse, which onnxruntime-extensions has."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17, "ai.onnx.contrib" : 1]> {graph}')
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(2, dtype=np.float32) * 3, "w"))
    return model


BEFORE = """m (float[2, 2] x) => (float[2, 2] y) <float[2, 2] z> {
    z = ai.onnx.contrib.Inverse(x) y = MatMul(z, w) }"""
BEHIND = """m (float[2, 2] x) => (float[2, 2] y) <float[2, 2] z> {
    z = MatMul(x, w) y = ai.onnx.contrib.Inverse(z) }"""


def test_custom_ops(tmp_path):
    # In its own process: here extensions' library may have the ops of bngrad too, for implementation="python".
    code = "import pathlib, sys; from ort_training import test_artifacts as tests; "
    code += "tests.train_with_custom_ops(pathlib.Path(sys.argv[1]))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stderr


def train_with_custom_ops(folder):
    library = onnxruntime_extensions.get_library_path()
    options = {"requires_grad": ["w"], "loss": LossType.MSELoss, "custom_op_library": library}
    generate_artifacts(custom_model(BEFORE), artifact_directory=folder, **options)
    session_options = onnxruntime.SessionOptions()
    session_options.register_custom_ops_library(library)
    state = api.CheckpointState.load_checkpoint(folder / "checkpoint")
    files = [folder / f"{stem}_model.onnx" for stem in ("training", "eval")]
    module = api.Module(files[0], state, files[1], session_options=session_options)
    x = np.array([[2, 0], [0, 4]], np.float32)
    for mode in (module.train, module.eval):
        mode()
        assert module(x, np.zeros_like(x)) == pytest.approx((1.5**2 + 0.75**2) / 4)
    np.testing.assert_allclose(state.parameters["w"].grad, [[0.375, 0], [0, 0.09375]], rtol=1e-6)


CUSTOM_REFUSALS = {
    "no library": (BEFORE, None, "ai.onnx.contrib.Inverse node 'z' .* cannot run on stock ONNX Runtime"),
    "no gradient": (BEHIND, __file__, "ai.onnx.contrib.Inverse node 'y' .* has no gradient rule"),
}


@pytest.mark.parametrize(("graph", "library", "message"), CUSTOM_REFUSALS.values(), ids=CUSTOM_REFUSALS)
def test_custom_ops_are_refused(tmp_path, graph, library, message):
    options = {"requires_grad": ["w"], "loss": LossType.MSELoss, "custom_op_library": library}
    with pytest.raises(RuntimeError, match=message):
        generate_artifacts(custom_model(graph), artifact_directory=tmp_path, **options)


def test_initializers_that_are_inputs(tmp_path):
    model = onnx.parser.parse_model("""<ir_version: 3, opset_import: ["" : 12]>
        m (float[N, 6] x, float[6, 3] w, float[3] b) => (float[N, 3] y) { h = MatMul(x, w) y = Add(h, b) }""")
    values = {"w": np.ones((6, 3), np.float32), "b": np.zeros(3, np.float32)}
    for name, value in values.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    options = {"requires_grad": ["w"], "frozen_params": ["b"], "loss": LossType.MSELoss}
    training, _, held = generated(tmp_path, model, **options)
    assert [value.name for value in training.get_inputs()][:4] == ["x", "target", "w", "b"]
    ones = np.ones((2, 6), np.float32)
    outputs = call(training, held, x=ones, target=np.zeros((2, 3), np.float32))
    assert outputs[training.get_outputs()[0].name] == 36
