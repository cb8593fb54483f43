"""Pad and Resize of some axes, which ONNX Runtime computes wrongly next to a Transpose."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import bngrad
from bngrad.passes.workarounds.all_axes import AllAxesPass
from pass_models import header, model, ops

NODES = {
    "pad": "p = Pad (c, pads, , axes)",
    "pad, all axes in another order": "p = Pad (c, all_pads, , all_axes)",
    "pad, reflected": 'p = Pad <mode = "reflect"> (c, pads, , axes)',
    "pad, axes computed": "n = Neg (axes) m = Neg (n) p = Pad (c, pads, , m)",
    "resize": "p = Resize <axes = [2, -1]> (c, , scales)",
    "resize, all axes in another order": "p = Resize <axes = [0, 1, 3, 2]> (c, , all_scales)",
    "resize to sizes": "p = Resize <axes = [3, 2]> (c, , , sizes)",
    "resize to all sizes": (
        'p = Resize <axes = [0, 1, 3, 2], keep_aspect_ratio_policy = "not_larger"> (c, , , all)'
    ),
    "resize of a region": (
        'p = Resize <axes = [3, 2], coordinate_transformation_mode = "tf_crop_and_resize"> (c, region, scales)'
    ),
}
GRAPH = """g (float[2,5,6,4] x) => (float[P,Q,R,S] y)
    <int64[4] pads = {1, 2, 2, 0}, int64[2] axes = {2, -1}, int64[8] all_pads = {0, 1, 2, 1, 0, 1, 1, 0},
     int64[4] all_axes = {0, 1, 3, 2}, float[2] scales = {2, 3}, float[4] all_scales = {1, 1, 2, 3},
     int64[2] sizes = {9, 7}, int64[4] all = {2, 4, 9, 7}, float[4] region = {0.1, 0.2, 0.7, 0.9}>
    { c = Transpose <perm = [0, 3, 1, 2]> (x) [p] %s y = Transpose <perm = [0, 2, 3, 1]> (p) }"""


def run(graph, x, level="ORT_ENABLE_ALL"):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    data = ir.to_proto(graph).SerializeToString()
    (y,) = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    return y


@pytest.mark.parametrize("name", NODES)
def test_results(name, rng):
    text = header(18) + GRAPH % NODES[name]
    original, changed = model(text), model(text)
    assert AllAxesPass()(changed).modified
    x = rng.standard_normal((2, 5, 6, 4)).astype(np.float32)
    expected = run(original, x, "ORT_DISABLE_ALL")
    np.testing.assert_allclose(run(changed, x), expected, rtol=1e-6, atol=1e-6)


def test_a_ratio_of_some_axes_stays():
    text = header(18) + GRAPH % (
        'p = Resize <axes = [3, 2], keep_aspect_ratio_policy = "not_larger"> (c, , , sizes)'
    )
    graph = model(text)
    before = ops(graph)
    assert not AllAxesPass()(graph).modified
    assert ops(graph) == before


@pytest.mark.skipif(
    tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 27),
    reason="ONNX Runtime below 1.27 has no overloads",
)
@pytest.mark.parametrize(
    "node",
    ["Pad (a, pads, , axes)", "Resize <axes = [0, 1, 3, 2]> (a, , scales)"],
)
def test_a_training_graph_with_channels_last(node, rng):
    """The kernel of the op of batch norms keeps the Transposes around the node."""
    graph = onnx.parser.parse_model(
        header(18)
        + f"""g (float[2,3,6,5] x) => (float loss)
        <int64[8] pads = {{0, 0, 2, 1, 0, 0, 1, 0}}, int64[4] axes = {{0, 1, 3, 2}},
         float[4] scales = {{1, 1, 2, 3}}, float[3] m = {{0, 0, 0}}, float[3] v = {{1, 1, 1}}>
        {{ a, am, av = BatchNormalization <training_mode = 1> (x, s, b, m, v) p = {node}
           y, ym, yv = BatchNormalization <training_mode = 1> (p, t, c, m, v)
           e = Exp (y) loss = ReduceMean <keepdims = 0> (e) }}"""
    )
    for name in "sbtc":
        array = rng.standard_normal(3).astype(np.float32)
        graph.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    x = rng.standard_normal((2, 3, 6, 5)).astype(np.float32)
    names = ["loss", *(f"{name}_grad" for name in "sbtc")]
    expected, actual = (
        bngrad.session(bngrad.differentiate(graph, channels_last=last)).run(names, {"x": x})
        for last in (False, True)
    )
    for name, a, b in zip(names, actual, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4, err_msg=name)


def test_a_user_s_transposes(rng):
    """The training graph, and the inference model, without channels last."""
    text = """g (float[2,5,6,4] x) => (float loss)
        <int64[8] pads = {0, 1, 2, 1, 0, 1, 1, 0}, int64[4] axes = {0, 1, 3, 2}, float[2,6,9,6] w = {WEIGHTS}>
        { c = Transpose <perm = [0, 3, 1, 2]> (x) p = Pad (c, pads, , axes)
          y = Transpose <perm = [0, 2, 3, 1]> (p) q = Mul (y, w) loss = ReduceSum <keepdims = 0> (q) }"""
    numbers = rng.standard_normal(2 * 6 * 9 * 6).round(3)
    forward = onnx.parser.parse_model(header(18) + text.replace("WEIGHTS", ", ".join(map(str, numbers))))
    x = rng.standard_normal((2, 5, 6, 4)).astype(np.float32)
    expected = run(ir.from_proto(forward), x, "ORT_DISABLE_ALL")
    training = bngrad.differentiate(forward, loss="loss", wrt=["w"])
    (loss, gradient) = bngrad.session(training).run(["loss", "w_grad"], {"x": x})
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(np.sum(gradient * numbers.reshape(gradient.shape)), expected, rtol=1e-5)
    weights = {"w": numbers.reshape(gradient.shape).astype(np.float32)}
    final = bngrad.finalize(forward, weights, outputs=["loss"])
    np.testing.assert_allclose(run(ir.from_proto(final), x), expected, rtol=1e-5)
