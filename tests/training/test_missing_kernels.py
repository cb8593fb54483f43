"""Steps that ONNX Runtime has no kernels for are refused when they are made, and others are not."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import onnx
import pytest

import bngrad
from bngrad.cli import run
from bngrad.errors import UnsupportedNodeError

LOSS = "loss = SoftmaxCrossEntropyLoss (z, labels)"
TYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "double": np.float64, "float": np.float32}


def forward(element, op, loss=LOSS):
    text = f"""<ir_version: 8, opset_import: ["" : 20]>
        g ({element}[N, 2] x, int64[N] labels) => ({element} loss) {{
            h = MatMul (x, w) [act] a = {op} (h) z = Gemm (a, v) {loss} }}"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (2, 4)), ("v", (4, 3))):
        array = rng.standard_normal(shape).astype(TYPES[element])
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


REFUSED = {
    "double, Tan": (
        forward("double", "Tan"),
        r"of Tan for double, which Tan node 'act' \(outputs a\) needs; export",
    ),
    "double, the gradient": (
        forward("double", "Gelu"),
        r"of Erf for double, which Erf node 'act_Grad/GeluGrad_0_Erf' .* needs",
    ),
    "bfloat16, a loss": (
        forward("bfloat16", "Relu"),
        "of NegativeLogLikelihoodLoss for bfloat16, which is part of SoftmaxCrossEntropyLoss; export the model",
    ),
    "bfloat16, a product": (
        forward("bfloat16", "Relu", "s = Mul (z, z) loss = ReduceMean <keepdims = 0> (s)"),
        r"has no CPU kernel of \w+ for bfloat16, which \w+ .* needs",
    ),
}


@pytest.mark.parametrize("how", REFUSED)
def test_the_command_refuses_with_the_node(how, tmp_path, monkeypatch, capsys):
    model, message = REFUSED[how]
    monkeypatch.chdir(tmp_path)
    onnx.save(model, "model.onnx")
    assert run(["step", "model.onnx", "-o", "step.onnx"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("bngrad: error: ONNX Runtime ")
    assert re.search(message, err)
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize("element", ["float16", "double", "float"])
def test_others_run(element, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(forward(element, "Sin"), "model.onnx")
    assert run(["step", "model.onnx", "-o", "step.onnx"]) == 0
    trainer = bngrad.Trainer("step.onnx", learning_rate=0.1)
    x = np.ones((3, 2), TYPES[element])
    assert np.isfinite(trainer.step(x=x, labels=np.array([0, 1, 2])))


def test_a_trainer_refuses_with_one_line():
    """The step may be meant for another runtime."""
    step = bngrad.training_step(forward("double", "Tan"))
    with pytest.raises(UnsupportedNodeError, match=r"has no CPU kernel of Tan for double, which Tan node 'act'"):
        bngrad.Trainer(step, learning_rate=0.1)
