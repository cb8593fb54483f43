"""The digits network as a whole, in float64: forward pass and gradients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from bngrad.oracle import prepare_forward
from bngrad.validation.float64 import evaluate
from models import digits_resnet20


@pytest.fixture(scope="module")
def digits():
    images, labels = digits_resnet20.digits()
    model = onnx.load(Path(digits_resnet20.__file__).with_name("digits_resnet20.onnx"))
    return model, {"images": images[:8], "labels": labels[:8]}


def relative(a, b):
    return np.linalg.norm(a - b) / np.linalg.norm(b)


def test_digits_forward_agrees_with_onnxruntime(digits):
    model, feeds = digits
    session = ort.InferenceSession(model.SerializeToString())
    names = [value.name for value in session.get_outputs()]
    exact = evaluate(model, feeds)
    assert list(exact) == names
    assert max(map(relative, session.run(names, feeds), exact.values())) < 1e-5


@pytest.fixture(scope="module")
def digits_gradient(digits, oracle):
    """The training graph that ORT's builder makes, its feeds, and what its kernels compute in float32."""
    model, feeds = digits
    prepared = prepare_forward(model)
    feeds = {**prepared.values, **feeds}
    training = oracle.build_gradient(prepared.model, prepared.loss, prepared.wrt).model
    return ir.to_proto(training), feeds, oracle.run(training, feeds)


def test_digits_gradients_agree_with_ort_training(digits_gradient):
    training, feeds, float32 = digits_gradient
    exact = evaluate(training, feeds)
    gradients = [name for name in exact if name.endswith("_grad")]
    assert len(gradients) >= 21 * 3 + 2  # a weight, a scale and a bias for each batch norm; the classifier
    assert all(relative(float32[name], exact[name]) < 1e-4 for name in exact)


def test_digits_gradients_are_the_derivative(digits, digits_gradient):
    """Along a random direction through all parameters at once, in float64."""
    (model, feeds), (training, training_feeds, _) = digits, digits_gradient
    exact = evaluate(training, training_feeds)
    rng = np.random.default_rng(0)
    start = {tensor.name: numpy_helper.to_array(tensor).astype(np.float64) for tensor in model.graph.initializer}
    direction = {name: rng.standard_normal(start[name].shape) for name in start if f"{name}_grad" in exact}
    step = 1e-6
    losses = [
        evaluate(model, {**feeds, **{k: start[k] + sign * step * v for k, v in direction.items()}}, ["loss"])[
            "loss"
        ]
        for sign in (1, -1)
    ]
    slope = sum((exact[f"{name}_grad"] * v).sum() for name, v in direction.items())
    np.testing.assert_allclose((losses[0] - losses[1]) / (2 * step), slope, rtol=1e-6)
