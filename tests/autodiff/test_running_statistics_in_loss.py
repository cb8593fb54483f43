"""A loss that reads the new running statistics of a batch norm, by both rules of the running variance."""

from __future__ import annotations

import numpy as np
import pytest

import bngrad
from autodiff.small_models import model
from bngrad.runtime.session import IMPLEMENTATIONS
from bngrad.validation.float64 import Evaluator

STEP = 1e-6
STATISTICS = "float[2] m = {0.5, -1}, float[2] v = {0.5, 3}"
ONNX = "y, m1, v1 = BatchNormalization <training_mode = 1, momentum = 0.75> (x, s, b, m, v)"
OURS = """y, m1, v1, saved, inv_std = bngrad.BatchNormalizationTraining
    <epsilon = 0.001, momentum = 0.75, unbiased_running_var = {}> (x, s, b, m, v, axes)"""
# name: (the batch norm, its axes, the shape of x, running_variance)
BATCH_NORMS = {
    "onnx, biased": (ONNX, (0, 2), (3, 2, 2), "biased"),
    "onnx, unbiased": (ONNX, (0, 2), (3, 2, 2), "unbiased"),
    "onnx, matrix, unbiased": (ONNX, (0,), (4, 2), "unbiased"),
    "onnx, one element, unbiased": (ONNX, (0,), (1, 2), "unbiased"),
    "ours, biased": (OURS.format(0), (0, 1), (3, 2, 2), None),
    "ours, unbiased": (OURS.format(1), (0, 1), (3, 2, 2), None),
}
# name: (nodes that compute the loss, further values to differentiate with respect to)
LOSSES = {
    "all": (
        """p = ReduceSum <keepdims = 0> (h) q = Sin (m1) r = Mul (q, v1) k = ReduceSum <keepdims = 0> (r)
        loss = Add (p, k)""",
        ["s", "b", "m", "v"],
    ),
    "variance": ("k = Mul (v1, v1) loss = ReduceSum <keepdims = 0> (k)", ["v"]),
    "mean": ("k = Mul (m1, m1) loss = ReduceSum <keepdims = 0> (k)", ["m"]),
}


def forward(name, loss):
    batch_norm, axes, shape, kind = BATCH_NORMS[name]
    body = f"{batch_norm} g = Sin (y) h = Mul (g, w) {LOSSES[loss][0]}"
    shape = ", ".join(map(str, shape))
    axes = f"{', '.join(map(str, axes))}"
    initializers = f"{STATISTICS}, int64[{len(axes.split(','))}] axes = {{{axes}}}"
    result = model(f"float[{shape}] x, float[{shape}] w, float[2] s, float[2] b", body, initializers=initializers)
    result.opset_import.add(domain="bngrad", version=1)
    return result, kind


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", BATCH_NORMS)
def test_gradients(name, loss, rng):
    proto, kind = forward(name, loss)
    wrt = ["x", *LOSSES[loss][1]]
    training = bngrad.differentiate(proto, loss="loss", wrt=wrt, running_variance=kind)
    shape = BATCH_NORMS[name][2]
    feeds = {key: rng.standard_normal(shape) for key in ("x", "w")}
    feeds |= {key: rng.uniform(0.5, 2, 2) for key in ("s", "b", "m", "v")}
    evaluator = Evaluator(training)
    gradients = evaluator(feeds)
    for variable in wrt:
        direction = rng.standard_normal(feeds[variable].shape)
        moved = ({**feeds, variable: feeds[variable] + step * direction} for step in (STEP, -STEP))
        ahead, behind = (float(evaluator(values, ["loss"])["loss"]) for values in moved)
        want = float(np.sum(gradients[f"{variable}_grad"] * direction))
        assert (ahead - behind) / (2 * STEP) == pytest.approx(want, rel=1e-6, abs=1e-8), variable
    single = {key: array.astype(np.float32) for key, array in feeds.items()}
    for implementation in IMPLEMENTATIONS:
        got = bngrad.session(training, implementation).run([f"{variable}_grad" for variable in wrt], single)
        for variable, array in zip(wrt, got, strict=True):
            want = gradients[f"{variable}_grad"]
            np.testing.assert_allclose(
                array, want, rtol=0, atol=1e-5 * max(np.abs(want).max(), 1e-3), err_msg=variable
            )
