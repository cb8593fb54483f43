"""docs/examples/node trains as Python does, and what it writes is read in Python."""

from __future__ import annotations

import re
import shutil

import onnx
import pytest

import bngrad
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


@pytest.mark.parametrize("arguments", [["0"], ["x"], ["1", "-1"]], ids=" ".join)
def test_usage(node, folder, arguments):
    with pytest.raises(AssertionError, match="usage: node "):
        node(TRAIN, folder, *arguments)
