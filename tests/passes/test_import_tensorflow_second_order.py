"""The gradient of TensorFlow's gradient, for which TensorFlow has no node, as the op of ``bngrad``."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from bngrad.opset import reference
from bngrad.passes.embed_functions import EmbedFunctionsPass
from dialects import run, worst_error
from ort_values import TOLERANCES
from tensorflow_formulas import FORMATS, MODES, axes_of_format, gradient_inputs, shape_of

SECOND_ORDER = """
<ir_version: 8, opset_import: ["" : 17, "bngrad" : 1]>
g (float[N,A,B,C] ddX, float[K] ddscale, float[K] ddbias, float[N,A,B,C] dY, float[N,A,B,C] X, float[K] scale,
    float[K] mean, float[K] inv_std, int64[R] axes)
    => (float[N,A,B,C] d_dY, float[N,A,B,C] d_X, float[K] d_scale) {
    d_dY, d_X, d_scale = bngrad.BatchNormalizationGradGrad<training_mode = MODE>
        (ddX, ddscale, ddbias, dY, X, scale, mean, inv_std, axes)
}"""


def second_order(u, a, b, dy, x, scale, mean, inv, axes, *, is_training):
    """TensorFlow's, in closed form, with K the sum of the terms that go through the statistics."""
    xs, dys, us = (np.asarray(t, np.float64) for t in (x, dy, u))
    a, b, s, mu, inv = (np.expand_dims(np.asarray(t, np.float64), axes) for t in (a, b, scale, mean, inv))
    xh = (xs - mu) * inv

    def average(t):
        return t.mean(axis=axes, keepdims=True)

    if not is_training:
        return (
            s * inv * us + a * xh + b,
            a * inv * dys,
            (inv * (us * dys).sum(axis=axes, keepdims=True)).squeeze(axes),
        )

    def project(t):
        return t - average(t) - xh * average(t * xh)

    p, q = average(us * xh), average(dys * xh)
    k = average(us * dys) - average(us) * average(dys) - p * q
    g_x = a * inv * project(dys) - s * inv**2 * (xh * k + q * project(us) + p * project(dys))
    g_scale = (inv * (us * project(dys)).sum(axis=axes, keepdims=True)).squeeze(axes)
    return s * inv * project(us) + a * xh + b, g_x, g_scale


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("data_format", [f for f in FORMATS if len(f) == 4])
def test_the_second_order(data_format, mode, rng):
    shape = shape_of(data_format)
    axes = axes_of_format(data_format, len(shape))
    dy, x, scale, *_ = gradient_inputs(rng, shape, data_format).values()
    mean, inv = (v.astype(np.float32) for v in reference.batch_normalization_statistics(x, axes, 1e-3))
    u = rng.standard_normal(shape).astype(np.float32)
    a, b = (rng.standard_normal(3).astype(np.float32) for _ in range(2))
    arrays = (u, a, b, dy, x, scale, mean, inv, axes)
    want = second_order(*arrays, is_training=MODES[mode])
    for got, expected in zip(reference.batch_normalization_grad_grad(*arrays, MODES[mode]), want, strict=True):
        # Float statistics are not quite those of x, which the closed form takes them for.
        assert worst_error(got, expected) <= 1e-6
    model = ir.from_proto(onnx.parser.parse_model(SECOND_ORDER.replace("MODE", str(MODES[mode]))))
    EmbedFunctionsPass()(model)
    names = ("ddX", "ddscale", "ddbias", "dY", "X", "scale", "mean", "inv_std", "axes")
    feeds = dict(zip(names, (*arrays[:-1], np.array(axes, np.int64)), strict=True))
    for got, expected in zip(run(model, feeds).values(), want, strict=True):
        assert worst_error(got, expected) <= 4 * TOLERANCES["float"]
