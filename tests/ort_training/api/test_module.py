"""Tests of Module: calls, gradients, evaluation, running statistics, buffers, and what is refused."""

from __future__ import annotations

import os

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime import OrtValue

from bngrad.ort_training.api import CheckpointState, Module, Optimizer
from bngrad.ort_training.checkpoint_file import Checkpoint, read_checkpoint, write_checkpoint
from bngrad.ort_training.errors import OrtTrainingError
from bngrad.ort_training.training_model import STATE_KEY
from ort_training import small_artifacts
from ort_training.small_artifacts import batch, mean_squared_error


def session(path):
    return onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])


def test_a_training_step(module, state):
    x, target = batch()
    loss, y = module(x, target)
    expected, gradients = mean_squared_error(state, x, target)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    assert (loss.shape, loss.dtype, y.shape) == ((), np.float32, (4, 2))
    for name, gradient in gradients.items():
        np.testing.assert_allclose(state.parameters[name].grad, gradient, rtol=1e-5)


def test_gradients_are_added_until_they_are_reset(module, state):
    gradient = state.parameters["w"].grad
    assert not gradient.any()
    for _ in range(3):
        module(*batch())
    np.testing.assert_allclose(gradient, 3 * mean_squared_error(state, *batch())[1]["w"], rtol=1e-5)
    before = gradient.copy()
    module.lazy_reset_grad()
    np.testing.assert_array_equal(gradient, before)
    module(*batch(1))
    np.testing.assert_allclose(gradient, mean_squared_error(state, *batch(1))[1]["w"], rtol=1e-5)
    module(*batch(1))
    np.testing.assert_allclose(gradient, 2 * mean_squared_error(state, *batch(1))[1]["w"], rtol=1e-5)


def test_evaluation_leaves_gradients(module, state):
    module(*batch())
    before = state.parameters["w"].grad.copy()
    assert module.eval() is module
    assert not module.training
    loss, _ = module(*batch(1, size=7))
    np.testing.assert_allclose(loss, mean_squared_error(state, *batch(1, size=7))[0], rtol=1e-6)
    np.testing.assert_array_equal(state.parameters["w"].grad, before)
    assert module.train() is module
    assert module.training


def test_results_stay_as_they_are(module):
    results = [[value.copy() for value in module(*batch(step))] for step in range(3)]
    held = [module(*batch(step)) for step in range(3)]
    for kept, copied in zip(held, results, strict=True):
        for value, copy in zip(kept, copied, strict=True):
            np.testing.assert_array_equal(value, copy)


def test_ort_values_give_ort_values(module):
    values = [OrtValue.ortvalue_from_numpy(array) for array in batch()]
    results = module(*values)
    assert [type(result) for result in results] == [OrtValue, OrtValue]
    module.lazy_reset_grad()
    mixed = module(values[0], batch()[1])
    assert [type(result) for result in mixed] == [np.ndarray, np.ndarray]
    np.testing.assert_array_equal(results[0].numpy(), mixed[0])


def test_arrays_need_not_be_contiguous(module):
    x, target = batch()
    expected = module(x, target)[0]
    assert module(np.asfortranarray(x), target[::-1][::-1])[0] == expected


def test_views_are_live(module, state):
    data = state.parameters["w"].data
    loss = module(*batch())[0]
    data[...] = 0
    assert module(*batch())[0] != loss
    np.testing.assert_allclose(module(*batch())[0], mean_squared_error(state, *batch())[0], rtol=1e-6)


def test_names(module):
    assert module.input_names() == ["x", "target"]
    assert module.output_names() == ["loss", "y"]
    assert module.eval().input_names() == ["x", "target"]
    assert module.output_names() == ["loss", "y"]


x, target = batch()
BAD_INPUTS = {
    "few": ([x], "1 inputs are given; expected 2: x, target"),
    "many": ([x, target, x], "3 inputs are given; expected 2: x, target"),
    "none": ([], "0 inputs are given"),
    "double": ([x.astype(float), target], "input 'x' is float64; expected float32"),
    "integers": ([x, target.astype(int)], "input 'target' is int64; expected float32"),
    "a-list": ([x, target.tolist()], "input 'target' is float64; expected float32"),
    "columns": ([x[:, :2], target], "input 'x' has shape [4, 2]; expected [N, 3] with N = 4"),
    "rank": ([x, target[0]], "input 'target' has shape [2]; expected [N, 2] with N = 4"),
    "scalar": ([x, np.float32(1)], "input 'target' has shape []; expected [N, 2] with N = 4"),
    "batches": ([x, target[:3]], "input 'target' has shape [3, 2]; expected [N, 2] with N = 4"),
    "ort-value": ([x, OrtValue.ortvalue_from_numpy(target[:3])], "input 'target' has shape [3, 2]"),
    "ort-value-type": ([x, OrtValue.ortvalue_from_numpy(target.astype(float))], "Unexpected input data type"),
}


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("case", BAD_INPUTS)
def test_bad_inputs_change_nothing(case, training, module, state):
    inputs, message = BAD_INPUTS[case]
    module(*batch())
    module.lazy_reset_grad()
    before = state.parameters["w"].grad.copy()
    with pytest.raises(RuntimeError) as caught:
        module.train(training)(*inputs)
    assert message in str(caught.value)
    np.testing.assert_array_equal(state.parameters["w"].grad, before)
    module.train()(*batch())  # the reset has not been lost
    np.testing.assert_array_equal(state.parameters["w"].grad, before)


def test_evaluation_needs_a_model(linear, state):
    module = Module(linear / "training_model.onnx", state).eval()
    for use in (lambda: module(*batch()), module.input_names, module.output_names):
        with pytest.raises(RuntimeError, match="no evaluation model; pass eval_model_uri"):
            use()


def missing(folder):
    return folder / "missing.onnx"


FILES = {
    "no-file": (missing, "missing.onnx does not exist"),
    "a-checkpoint": (lambda folder: folder / "checkpoint", "is a checkpoint of onnxruntime.training"),
    "a-buffer-without-parameter": (
        lambda folder: small_artifacts.write(
            folder / "other.onnx",
            small_artifacts.LINEAR_TRAINING.replace("b_grad.", "c_grad."),
        ),
        "its input 'c_grad.accumulation.buffer' is for 'c', not a parameter of the state",
    ),
    "another-shape": (
        lambda folder: small_artifacts.write(
            folder / "other.onnx", small_artifacts.LINEAR_TRAINING.replace("float[2] b,", "float[1] b,")
        ),
        "parameter 'b' is float32[2] in the state, and float32[1] in",
    ),
    "unknown-op": (
        lambda folder: small_artifacts.write(
            folder / "other.onnx",
            small_artifacts.LINEAR_TRAINING.replace("Size (d)", "com.microsoft.Odd (d)"),
        ),
        "com.microsoft.Odd",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_training_models_that_are_refused(case, linear, state):
    make, message = FILES[case]
    with pytest.raises(OrtTrainingError) as caught:
        Module(make(linear), state)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "value", ["", "{", "null", "[1]", '{"x": "no"}', '{"a": "loss"}', '{"w": "b_new"}', '{"w": 3}', '{"w": []}']
)
def test_metadata_of_another_model(value, linear, state):
    model = onnx.load(linear / "training_model.onnx")
    onnx.helper.set_model_props(model, {STATE_KEY: value})
    onnx.save(model, linear / "other.onnx")
    with pytest.raises(RuntimeError, match=rf"other.onnx: its metadata {STATE_KEY} do not name an output"):
        Module(linear / "other.onnx", state)


def test_an_eval_model_that_is_missing(linear, state):
    with pytest.raises(RuntimeError, match=r"missing.onnx does not exist"):
        Module(linear / "training_model.onnx", state, missing(linear))


@pytest.mark.parametrize("device", ["webgpu:1", "cpu:1", "CPU", "xpu"])
def test_other_devices_are_refused(device, linear, state):
    with pytest.raises(RuntimeError, match=f"device '{device}' is not supported; expected 'cpu', 'cuda' or "):
        Module(linear / "training_model.onnx", state, device=device)


def test_session_options_serve_all_sessions(linear, state):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    module = Module(linear / "training_model.onnx", state, linear / "eval_model.onnx", "cpu:0", options)
    Optimizer(linear / "sgd.onnx", module).step()
    Module(linear / "training_model.onnx", state, session_options=options)(*batch())
    module.eval()(*batch())


STRINGS = {"array": str, "objects": object}


@pytest.mark.parametrize("dtype", STRINGS.values(), ids=STRINGS)
def test_string_inputs(dtype, linear, state):
    text = small_artifacts.LINEAR_TRAINING.replace("float[N, 3] x", "string[N, 3] words")
    text = text.replace("product =", "x = Cast <to = 1> (words) product =")
    module = Module(small_artifacts.write(linear / "words.onnx", text), state)
    x, target = np.array([[1, 2, 3], [4, 5, 6.5]], "f"), np.ones((2, 2), "f")
    for count in (1, 2):
        loss, _ = module(x.astype(str).astype(dtype), target)
        expected, gradients = mean_squared_error(state, x, target)
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
        np.testing.assert_allclose(state.parameters["w"].grad, count * gradients["w"], rtol=1e-5)
    for words, message in ((x, "is float32; expected strings"), (np.array([["1"]]), "has shape")):
        with pytest.raises(RuntimeError, match=f"input 'words' {message}"):
            module(words, target)


def test_two_modules_share_a_state(linear, module, state):
    other = Module(linear / "training_model.onnx", state)
    module(*batch())
    other(*batch())
    np.testing.assert_allclose(
        state.parameters["w"].grad, 2 * mean_squared_error(state, *batch())[1]["w"], rtol=1e-5
    )


# ---- running statistics that are not parameters ----


@pytest.fixture
def norm(tmp_path):
    folder = small_artifacts.norm(tmp_path)
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    return Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")


def test_running_statistics_move(norm):
    x = np.random.default_rng(1).normal(3, 2, (50, 2)).astype("f")
    first = norm.eval()(x)
    np.testing.assert_allclose(first, (x / np.sqrt(1 + 1e-5)).mean(), rtol=1e-5)
    for _ in range(100):
        norm.train()(x)
    # Those of the batch, by now, with which its mean is 0.
    np.testing.assert_allclose(norm.eval()(x), 0, atol=1e-3)
    again = norm(x)
    norm(x)
    assert norm(x) == again


def test_running_statistics_that_are_outputs(tmp_path):
    """They stay outputs of a call, and the state moves."""
    folder = small_artifacts.norm(tmp_path)
    text = small_artifacts.NORM_TRAINING.replace(
        "(float loss,", "(float loss, float[2] new_mean, float[2] new_var,"
    )
    path = small_artifacts.write(tmp_path / "outputs.onnx", text)
    module = Module(path, CheckpointState.load_checkpoint(folder / "checkpoint"))
    assert module.output_names() == ["loss", "new_mean", "new_var"]
    x = np.random.default_rng(1).normal(3, 2, (50, 2)).astype("f")
    for count in (1, 2):
        _, mean, var = module(x)
        np.testing.assert_allclose(mean, x.mean(0) * (1 - 0.9**count), rtol=1e-5)
        np.testing.assert_allclose(var, 0.9**count + x.var(0) * (1 - 0.9**count), rtol=1e-5)


def test_running_statistics_are_exported(norm, tmp_path):
    x = np.random.default_rng(1).normal(3, 2, (50, 2)).astype("f")
    for _ in range(3):
        norm(x)
    norm.export_model_for_inferencing(tmp_path / "out.onnx", ["loss"])
    norm(x)  # moves on
    exported = {i.name: onnx.numpy_helper.to_array(i) for i in onnx.load(tmp_path / "out.onnx").graph.initializer}
    np.testing.assert_allclose(exported["mean"], x.mean(0) * (1 - 0.9**3), rtol=1e-4)
    np.testing.assert_allclose(exported["var"], 0.9**3 + x.var(0) * (1 - 0.9**3), rtol=1e-4)


# ---- buffers ----


def test_sizes(module):
    assert (module.get_parameters_size(), module.get_parameters_size(False)) == (8, 8)


def test_frozen_parameters_are_left_out(norm):
    assert (norm.get_parameters_size(), norm.get_parameters_size(False)) == (2, 4)
    assert norm.get_contiguous_parameters(True).numpy().tolist() == [1, 1]
    assert norm.get_contiguous_parameters().numpy().tolist() == [1, 1, 0, 0]


def as_inner(vector):
    return OrtValue.ortvalue_from_numpy(vector)._ortvalue


@pytest.mark.parametrize(
    "kind", [np.array, OrtValue.ortvalue_from_numpy, as_inner], ids=["array", "value", "inner"]
)
def test_a_buffer_sets_the_parameters(kind, module, state):
    vector = np.arange(8, dtype="f")
    module.copy_buffer_to_parameters(kind(vector))
    assert state.parameters["w"].data.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert state.parameters["b"].data.tolist() == [6, 7]
    assert module.get_contiguous_parameters().numpy().tolist() == list(range(8))


BUFFERS = {
    "short": (np.zeros(7, "f"), "buffer is float32[7]; expected float32[8]"),
    "double": (np.zeros(8), "buffer is float64[8]; expected float32[8]"),
    "matrix": (np.zeros((2, 4), "f"), "buffer is float32[2, 4]; expected float32[8]"),
}


@pytest.mark.parametrize("case", BUFFERS)
def test_other_buffers_are_refused(case, module, state):
    buffer, message = BUFFERS[case]
    before = state.parameters["w"].data.copy()
    with pytest.raises(RuntimeError) as caught:
        module.copy_buffer_to_parameters(buffer)
    assert str(caught.value) == message
    np.testing.assert_array_equal(state.parameters["w"].data, before)


def test_a_nominal_state(linear):
    state = CheckpointState.load_checkpoint(linear / "nominal_checkpoint")
    module = Module(linear / "training_model.onnx", state, linear / "eval_model.onnx")
    optimizer = Optimizer(linear / "adamw.onnx", module)
    optimizer.set_learning_rate(0.1)
    assert module.get_parameters_size() == 8
    for use in (
        lambda: module.train()(*batch()),
        lambda: module.eval()(*batch()),
        optimizer.step,
        module.get_contiguous_parameters,
        lambda: module.copy_buffer_to_parameters(np.zeros(8, "f")),
        lambda: module.export_model_for_inferencing(linear / "out.onnx", ["y"]),
        lambda: state.parameters["w"],
        lambda: state.parameters.__setitem__("w", np.zeros((3, 2), "f")),
    ):
        with pytest.raises(RuntimeError, match="nominal checkpoint"):
            use()
    module.copy_buffer_to_parameters(np.arange(8, dtype="f"), trainable_only=False)
    np.testing.assert_allclose(module.train()(*batch())[0], mean_squared_error(state, *batch())[0], rtol=1e-5)
    optimizer.step()
    CheckpointState.save_checkpoint(state, linear / "complete", include_optimizer_state=True)
    complete = read_checkpoint(linear / "complete")
    assert not complete.nominal
    assert complete.trainable["w"].shape == (3, 2)


def test_a_parameter_that_is_not_float32(linear):
    text = small_artifacts.LINEAR_TRAINING.replace("float[", "double[").replace("float loss", "double loss")
    text = text.replace("value = float", "value = double").replace("Cast <to = 1>", "Cast <to = 11>")
    path = small_artifacts.write(linear / "double.onnx", text)
    checkpoint = Checkpoint({"w": np.zeros((3, 2)), "b": np.zeros(2)})
    write_checkpoint(checkpoint, linear / "doubles")
    state = CheckpointState.load_checkpoint(linear / "doubles")
    module = Module(path, state)
    x, target = (array.astype(float) for array in batch())
    np.testing.assert_allclose(module(x, target)[0], (target**2).mean(), rtol=1e-12)
    assert state.parameters["w"].grad.dtype == np.float64
    with pytest.raises(RuntimeError, match="parameter 'w' is float64; a buffer of parameters is float32"):
        module.get_contiguous_parameters()
    with pytest.raises(RuntimeError, match="parameter 'w' is float64; expected float32"):
        Optimizer(linear / "sgd.onnx", module)


# ---- export ----


def test_export(module, state, tmp_path):
    module.export_model_for_inferencing(tmp_path / "out.onnx", ["y"])
    exported = session(tmp_path / "out.onnx")
    assert [value.name for value in exported.get_inputs()] == ["x"]
    x, _ = batch()
    (y,) = exported.run(None, {"x": x})
    np.testing.assert_allclose(y, x @ state.parameters["w"].data + state.parameters["b"].data, rtol=1e-6)
    state.parameters["w"].data[...] = 0
    module.export_model_for_inferencing(tmp_path / "out.onnx", ["product", "y"])
    product, y = session(tmp_path / "out.onnx").run(None, {"x": x})
    assert not product.any()


EXPORTS = {
    "unknown": ("out.onnx", ["z"], "the evaluation model computes no 'z'; expected one of product, y"),
    "an-input": ("out.onnx", ["x"], "the evaluation model computes no 'x'"),
    "none": ("out.onnx", [], "graph_output_names is empty"),
    "no-folder": ("no/out.onnx", ["y"], "does not exist"),
    "a-folder": ("", ["y"], "is a directory"),
    "a-string": ("out.onnx", "y", "graph_output_names is the string 'y'; expected a list of names"),
}


@pytest.mark.parametrize("case", EXPORTS)
def test_exports_that_are_refused(case, module, tmp_path):
    name, outputs, message = EXPORTS[case]
    with pytest.raises(TypeError if isinstance(outputs, str) else RuntimeError) as caught:
        module.export_model_for_inferencing(tmp_path / name, outputs)
    assert message in str(caught.value)
    assert not (tmp_path / "out.onnx").exists()


def test_export_needs_an_evaluation_model(linear, state):
    module = Module(linear / "training_model.onnx", state)
    with pytest.raises(RuntimeError, match="no evaluation model, which is exported; pass eval_model_uri"):
        module.export_model_for_inferencing(linear / "out.onnx", ["y"])


def test_paths_as_bytes(linear):
    """As in 1.19.2, which passes them to `os.fspath`."""
    folder = os.fsencode(linear)
    state = CheckpointState.load_checkpoint(folder + b"/checkpoint")
    module = Module(folder + b"/training_model.onnx", state, folder + b"/eval_model.onnx")
    module(*batch())
    Optimizer(folder + b"/sgd.onnx", module).step()
    CheckpointState.save_checkpoint(state, folder + b"/saved")
    module.export_model_for_inferencing(folder + b"/exported.onnx", ["y"])
    assert {"saved", "exported.onnx"} <= {path.name for path in linear.iterdir()}


@pytest.mark.parametrize("buffer", [None, [0.0] * 8, "buffer"])
def test_buffers_of_other_types(buffer, module):
    with pytest.raises(TypeError, match="expected the result of get_contiguous_parameters"):
        module.copy_buffer_to_parameters(buffer)
