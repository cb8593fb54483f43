"""``bngrad statistics``: what it writes and prints, and what it refuses."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime
import pytest

import bngrad
from bngrad.io.files import as_ir
from bngrad.training.estimate_statistics import StatisticsEstimate
from training.statistics_cases import initializers, stacked, uneven_batches

OUT = ("-o", "out.onnx")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(stacked("float"), "net.onnx")
    np.savez("train.npz", **DATA)
    np.savez("images.npz", x=DATA["x"])
    return tmp_path


(DATA,) = uneven_batches((70,), dtype=np.float32)


def loss_of(model):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return float(session.run(["loss"], DATA)[0])


def test_the_terminal(command):
    code, out, err = command("statistics", "net.onnx", "--data", "train.npz", *OUT)
    assert (code, err) == (0, "")
    first, second, third, last = out.splitlines()
    assert first == "out.onnx: running statistics of 2 batch norms from 70 samples in 3 batches; 2 were far off"
    assert second.startswith("  layer1.bn: a mean by ")
    assert third.startswith("  layer2.bn: a mean by ")
    before, after = (loss_of(onnx.load(path)) for path in ("net.onnx", "out.onnx"))
    assert last.startswith(f"loss in inference mode: {before:.4g} before, {after:.4g} after")
    assert after < before


def test_the_document(command):
    code, out, _ = command(
        "statistics",
        "net.onnx",
        "--data",
        "train.npz",
        *OUT,
        "--json",
        "--batch-size",
        "70",
        "--batch-norm",
        "layer1.*",
    )
    document = json.loads(out)
    (norm,) = document.pop("batch_norms")
    assert (norm["name"], norm["elements"], norm["far_off"]) == ("layer1.bn", 70, True)
    assert document["after"]["loss"] == pytest.approx(loss_of(onnx.load("out.onnx")), rel=1e-5)
    assert (code, document["samples"], document["batches"]) == (0, 70, 1)
    estimate = StatisticsEstimate(as_ir(stacked("float")), ["layer1.bn"]).run([DATA])
    values = initializers(onnx.load("out.onnx"))
    np.testing.assert_allclose(
        values["var1"], estimate.model.graph.initializers["var1"].const_value.numpy(), rtol=1e-6
    )


def test_batches_are_of_equal_size(command):
    """A last batch of one sample would be normalized to 0."""
    np.savez("odd.npz", x=DATA["x"][:33])
    _, out, err = command("statistics", "net.onnx", "--data", "odd.npz", *OUT)
    assert out.startswith("out.onnx: running statistics of 2 batch norms from 33 samples in 2 batches")
    assert err == "bngrad: note: the data have no 'labels', so the loss 'loss' is not compared\n"


def test_arrays_that_the_model_does_not_take(command):
    onnx.save(bngrad.finalize(stacked("float"), {}, outputs=["y"]), "inference.onnx")
    code, out, err = command("statistics", "inference.onnx", "--data", "train.npz", *OUT)
    assert (code, err) == (0, "bngrad: note: the data have 'labels', which the model does not take; not used\n")
    assert len(out.splitlines()) == 3


def test_an_appended_loss(command):
    model = bngrad.finalize(stacked("float"), {}, outputs=["y"])
    onnx.save(model, "inference.onnx")
    code, out, err = command(
        "statistics", "inference.onnx", "--data", "train.npz", *OUT, "--loss-fn", "cross_entropy"
    )
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].startswith(f"loss in inference mode: {loss_of(stacked('float')):.4g} before, ")
    assert [value.name for value in onnx.load("out.onnx").graph.output] == ["y"]


REFUSED = {
    "no labels for a named loss": (
        ["net.onnx", "--data", "images.npz", "--loss", "loss"],
        "there is no data for 'labels'",
    ),
    "unknown loss": (["net.onnx", "--data", "train.npz", "--loss", "lost"], "'lost' is not a value of this model"),
    "unknown": (
        ["net.onnx", "--data", "train.npz", "--batch-norm", "bn9"],
        "'bn9' is not a batch norm of this model",
    ),
    "no data": (["net.onnx"], "Missing option '--data'"),
    "loss twice": (
        ["net.onnx", "--data", "train.npz", "--loss", "loss", "--loss-fn", "mse"],
        "loss 'loss' is named, and a loss function is to be appended",
    ),
    "a training step": (["step.onnx", "--data", "train.npz"], "the model is a training graph already"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case, command, folder):
    arguments, message = REFUSED[case]
    if case == "a training step":
        bngrad.training_step(stacked("float"), loss="loss", training=["*"]).save("step.onnx")
    code, out, err = command("statistics", *arguments, *OUT)
    assert (code, out) == (2, "")
    assert err.startswith(f"bngrad: error: {message}")
    assert not (folder / "out.onnx").exists()


def test_a_model_with_batches_of_one_size(command):
    text = stacked("float")
    for value in text.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = 16
    onnx.save(text, "fixed.onnx")
    _, out, _ = command("statistics", "fixed.onnx", "--data", "train.npz", *OUT)
    assert out.startswith("out.onnx: running statistics of 2 batch norms from 70 samples in 4 batches")
    code, _, err = command("statistics", "fixed.onnx", "--data", "train.npz", *OUT, "--batch-size", "8")
    assert (code, err) == (
        2,
        "bngrad: error: --batch-size is 8, but the model takes only batches of 16\n",
    )
