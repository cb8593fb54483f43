"""docs/examples/node trains as Python does, and what it writes is read in Python."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file

import bngrad
from bngrad.cli import run
from digits_training import EXAMPLES, MODEL, Training, accuracy_in, losses_in

STEPS = 20
RATE = 0.05
TRAIN = EXAMPLES / "node" / "train.mjs"


def test_each_step_is_that_of_python(node, folder, tmp_path, assert_steps_of_python):
    losses = losses_in(node("node_steps.mjs", folder, STEPS, RATE, tmp_path / "states"))
    assert len(losses) == STEPS
    assert_steps_of_python(tmp_path / "states", losses, RATE)


def test_adamw_with_everything(node, folder, tmp_path, assert_steps_of_python):
    """Accumulated gradients, clipping and counters in the state."""
    step = bngrad.training_step(MODEL, optimizer="adamw", layout="flat", accumulate=2, clip_norm=1.0)
    step.save(tmp_path / "step.onnx")
    shutil.copy(folder / "digits.safetensors", tmp_path)
    losses = losses_in(node("node_steps.mjs", tmp_path, 6, 1e-3, tmp_path / "states"))
    assert losses[-1] < losses[0]
    assert_steps_of_python(tmp_path / "states", losses, 1e-3, Training(tmp_path))


def test_the_example(node, folder, training, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    printed = node(TRAIN, tmp_path, STEPS, RATE)
    losses = losses_in(printed)
    assert losses == losses_in(node("node_steps.mjs", folder, STEPS, RATE, tmp_path / "states"))
    assert losses[-1] < losses[0] / 4
    model = onnx.load(tmp_path / "trained.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [value.name for value in model.graph.input] == ["images"]
    accuracy = accuracy_in(printed)
    assert training.accuracy(model.SerializeToString()) == pytest.approx(accuracy)
    assert training.check_written(tmp_path / "trained.safetensors", STEPS) == pytest.approx(accuracy)


@pytest.mark.long
def test_a_client_in_node(node, folder, training, tmp_path):
    """It sends its state to an average with a client in Python, and goes on from that."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    node(TRAIN, tmp_path, 3, RATE)
    trainer = bngrad.Trainer(tmp_path / "step.onnx", learning_rate=RATE)
    for rows in training.digits["batches"][3:5]:
        trainer.step(**{name: training.digits[f"training/{name}"][rows] for name in training.info.data})
    trainer.save(tmp_path / "python.safetensors")
    states = [tmp_path / "trained.safetensors", tmp_path / "python.safetensors"]
    arguments = ["-o", tmp_path / "step.safetensors", "--weights", "3,2"]
    assert run(["average", *map(str, [*states, *arguments])]) == 0
    first, second, state = map(load_file, [*states, tmp_path / "step.safetensors"])
    for norm in training.info.batch_norms[:2]:
        mean = (3 * first[norm.mean] + 2 * second[norm.mean]) / 5
        var = 3 * (first[norm.var] + (first[norm.mean] - mean) ** 2)
        var += 2 * (second[norm.var] + (second[norm.mean] - mean) ** 2)
        np.testing.assert_allclose(state[norm.mean], mean, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(state[norm.var], var / 5, rtol=1e-5)
    (loss,) = losses_in(node(TRAIN, tmp_path, 1, RATE))
    assert loss == pytest.approx(training.step(state, 0, RATE)[0], rel=1e-5)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("step.safetensors", lambda data: data[:-4], "the .safetensors file is truncated"),
        ("step.safetensors", lambda _: b"PK", "this is no .safetensors file"),
        (
            "step.safetensors",
            lambda data: data.replace(b"classifier.bias", b"classifier.bian"),
            "the state has no tensor classifier.bias",
        ),
        (
            "step.safetensors",
            lambda data: data.replace(b'"I64"', b'"U64"'),
            "tensor step has type U64; supported are F32",
        ),
        (
            "step.safetensors",
            lambda data: data.replace(b'"shape":[10]', b'"shape":[11]'),
            "tensor classifier.bias has 40 bytes; expected 44",
        ),
        ("step.onnx", lambda data: data[:-100], "this is no .onnx file, or a truncated one"),
        ("step.onnx", lambda data: data.replace(b"bngrad.step", b"bngrad.stop"), "step.onnx is no training step"),
        ("step.onnx", lambda data: data.replace(b'"flat": {', b'"flot": {'), "make it with --layout flat"),
        ("step.onnx", lambda data: data.replace(b'{"version": 1', b'{"version": 2'), "has format 2; expected 1"),
        (
            "step.eval.onnx",
            lambda data: re.sub(rb'"model": "[0-9a-f]{8}', b'"model": "00000000', data),
            "step.eval.onnx belongs to another step than step.onnx",
        ),
        ("inference.onnx", lambda _: b"", "the model has no input state"),
    ],
    ids=[
        "truncated",
        "no safetensors",
        "missing",
        "type",
        "size",
        "truncated step",
        "no step",
        "named",
        "version",
        "evaluation",
        "empty",
    ],
)
def test_refuses(node, folder, tmp_path, name, change, message):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / name).write_bytes(change((folder / name).read_bytes()))
    with pytest.raises(AssertionError, match=message):
        node(TRAIN, tmp_path, 1)
    assert not (tmp_path / "trained.onnx").exists()


REFUSED = {
    "no rate": ("step.step(batch)", "the learning rate is undefined; expected a finite number, at least 0"),
    "NaN as rate": ("step.step(batch, NaN)", "the learning rate is NaN; expected "),
    "negative rate": ("step.step(batch, -0.1)", "the learning rate is -0.1; expected "),
    "infinite float32": ("step.step(batch, 1e39)", r"the learning rate is 1e\+39; expected "),
    "text as rate": ('step.step(batch, "0.05")', 'the learning rate is "0.05"; expected a finite number'),
    "loss": (
        "step.step({ images: images.map(() => Infinity), labels }, 0.05)",
        "the loss is NaN; the state is unchanged: .* lower the learning rate",
    ),
    "no data": ("step.step(undefined, 0.05)", "there is no data for 'images'; expected images and labels"),
    "missing": ("step.step({ images }, 0.05)", "there is no data for 'labels'; expected images and labels"),
    "misspelt": (
        "step.step({ images, label: labels }, 0.05)",
        "there is no data for 'labels', and there is no input 'label'; expected images and labels",
    ),
    "unknown": (
        "step.step({ ...batch, weights: images }, 0.05)",
        "there is no input 'weights'; expected images and labels",
    ),
    "array": ("step.step({ images, labels: Array.from(labels) }, 0.05)", "labels has to be a BigInt64Array"),
    "length": (
        "step.step({ images: images.subarray(1), labels }, 0.05)",
        "images has 1023 elements; expected a multiple of 64",
    ),
    "empty": (
        "step.step({ images, labels: new BigInt64Array(0) }, 0.05)",
        "labels has 0 elements; expected at least 1",
    ),
    "fewer labels": (
        "step.step({ images, labels: labels.subarray(1) }, 0.05)",
        "labels has N = 15 and images has N = 16; expected the same",
    ),
    "label": ("step.step(wrong(10n), 0.05)", "labels has the label 10; expected 0 to 9"),
    "negative label": ("step.step(wrong(-1n), 0.05)", "labels has the label -1; expected 0 to 9"),
    "label that is not checked": (
        "unchecked(() => step.step(wrong(10n), 0.05))",
        "ONNX Runtime refuses the data: .*Out of range",
    ),
    "evaluated names": ("step.evaluate({ images })", "there is no data for 'labels'"),
    "evaluated label": ("step.evaluate(wrong(10n))", "labels has the label 10; expected 0 to 9"),
}
ACCEPTED = {
    "step": ("step.step(batch, 0.05)", False),
    "rate 0": ("step.step(batch, 0)", False),  # the running statistics change
    "evaluate": ("step.evaluate(batch)", True),
}


@pytest.fixture(scope="module")
def called(node, folder):
    """The outcome of each call."""
    calls = [call for call, _ in (*REFUSED.values(), *ACCEPTED.values())]
    printed = node("node_calls.mjs", folder, *calls).splitlines()
    return dict(zip(calls, map(json.loads, printed), strict=True))


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_calls(called, call, message):
    assert re.fullmatch(f"{message}.*", called[call]["error"])  # one line
    assert called[call]["unchanged"]


@pytest.mark.parametrize(("call", "unchanged"), ACCEPTED.values(), ids=ACCEPTED)
def test_accepted_calls(called, call, unchanged):
    assert called[call] == {"unchanged": unchanged}


@pytest.mark.parametrize("name", ["step.onnx", "step.eval.onnx", "step.safetensors"])
def test_missing_files(node, folder, tmp_path, name):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / name).unlink()
    hint = '"bngrad step" writes step.onnx, step.eval.onnx and step.safetensors into one folder'
    with pytest.raises(AssertionError, match=f"cannot read {name}; {hint}: ENOENT"):
        node(TRAIN, tmp_path, 1)


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        (["N", 1, "H", 8], "float32", r"images has shape \[N, 1, H, 8\]; expected at most one symbolic dimension"),
        (None, "float32", "images has shape null; expected at most one symbolic dimension"),
        (["N", 1, 8, 8], "float16", "images has type float16; supported are float32, "),
    ],
    ids=["symbols", "no rank", "type"],
)
def test_refused_inputs(node, folder, tmp_path, shape, dtype, message):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    model = onnx.load(folder / "step.onnx")
    (entry,) = (entry for entry in model.metadata_props if entry.key == "bngrad.step")
    info = json.loads(entry.value)
    info["data"]["images"] = {"dtype": dtype, "shape": shape}
    entry.value = json.dumps(info)
    onnx.save(model, tmp_path / "step.onnx")
    with pytest.raises(AssertionError, match=message):
        node(TRAIN, tmp_path, 1)


@pytest.mark.parametrize("arguments", [["0"], ["x"], ["1", "-1"]], ids=" ".join)
def test_usage(node, folder, arguments):
    with pytest.raises(AssertionError, match="usage: node "):
        node(TRAIN, folder, *arguments)
