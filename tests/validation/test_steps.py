"""The bounds of the steps that are no batch norms: wide enough for right float arithmetic, and not much wider."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from bngrad.opset.functions import function_proto
from bngrad.validation.common_values import CommonValues
from bngrad.validation.lockstep import lock_step
from bngrad.validation.sites import find_sites
from bngrad.validation.steps import find_steps

GRADIENT_OF_A_SCALE = """
a (float[N, C, S] dA, float[N, C, S] X, float[C] scale, float[C] bias, float[C] mean, float[C] inv_std, float[C] w)
    => (float[C] w_grad)
<int64[2] axes = {0, 2}, int64[1] last = {1}>
{
    m = Unsqueeze(mean, last)
    i = Unsqueeze(inv_std, last)
    s = Unsqueeze(scale, last)
    b = Unsqueeze(bias, last)
    centered = Sub(X, m)
    xhat = Mul(centered, i)
    scaled = Mul(xhat, s)
    Y = Add(scaled, b)
    t = Mul(dA, Y)
    ["n_Grad/ReduceSum_0"] w_grad = ReduceSum<keepdims = 0>(t, axes)
}
"""

FOLDED_INTO_A_BATCH_NORM = """
a (float[N, C, S] dA, float[N, C, S] X, float[C] scale, float[C] bias, float[C] mean, float[C] inv_std, float[C] w)
    => (float[C] w_grad)
<int64[2] axes = {0, 2}>
{
    sw = Mul(scale, w)
    dX, dscale, dbias = bngrad.BatchNormalizationGrad<training_mode = 1>(dA, X, sw, mean, inv_std, axes)
    through_scale = Mul(dscale, scale)
    through_bias = Mul(dbias, bias)
    w_grad = Add(through_scale, through_bias)
}
"""

PRODUCT_WITH_A_WEIGHT = """
a (float[M, K] dA) => (float[M, P] A_grad)
{
    ["n_Grad/MatMul_0"] A_grad = MatMul(dA, W)
}
"""

IN_TWO_HALVES = """
a (float[M, K] dA) => (float[M, P] A_grad)
{
    a0, a1 = Split<axis = 1>(dA)
    w0, w1 = Split<axis = 0>(W)
    p0 = MatMul(a0, w0)
    p1 = MatMul(a1, w1)
    A_grad = Add(p0, p1)
}
"""


def scale_behind_a_batch_norm() -> dict[str, np.ndarray]:
    """dscale and dbias cancel: dA is nearly orthogonal to Y, which the bias keeps far from zero."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(8, 5, 196)).astype(np.float32)
    dA = (rng.normal(size=X.shape) - 0.05 * X + 0.05).astype(np.float32)
    scale, w = (rng.uniform(0.5, 1.5, 5).astype(np.float32) for _ in range(2))
    mean = X.mean(axis=(0, 2))
    inv_std = 1 / X.std(axis=(0, 2))
    xhat = (X - mean[:, None]) * inv_std[:, None]
    bias = -scale * (dA * xhat).sum(axis=(0, 2)) / dA.sum(axis=(0, 2))
    return {"dA": dA, "X": X, "scale": scale, "bias": bias, "mean": mean, "inv_std": inv_std, "w": w}


def weight_of_both_signs() -> dict[str, np.ndarray]:
    """Each element adds up a thousand terms to nearly nothing, and so does what is made of dA's squares alone."""
    W = np.random.default_rng(0).normal(size=(1000, 7)).astype(np.float32)
    return {"dA": np.ones((3, 1000), np.float32), "W": W - W.mean(axis=0)}


CASES = {
    "scale folded into a batch norm": (
        GRADIENT_OF_A_SCALE,
        FOLDED_INTO_A_BATCH_NORM,
        scale_behind_a_batch_norm,
        lambda a: np.abs(a["dA"] * a["X"]).sum(axis=(0, 2)),
    ),
    "product with a weight that has a default": (
        PRODUCT_WITH_A_WEIGHT,
        IN_TWO_HALVES,
        weight_of_both_signs,
        lambda a: np.sqrt(np.square(a["W"]).sum(axis=0)) * np.ones((3, 1)),
    ),
}
"""Name -> the original, the graph under test, its inputs, and the size of what each element adds up."""


def parsed(text: str, arrays: dict[str, np.ndarray]) -> onnx.ModelProto:
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17, "bngrad" : 1]>' + text)
    if "W" in arrays:  # a weight is an input with a default
        weight = onnx.numpy_helper.from_array(arrays["W"], "W")
        model.graph.initializer.append(weight)
        model.graph.input.append(onnx.helper.make_tensor_value_info("W", weight.data_type, weight.dims))
    if "bngrad." in text:
        model.functions.append(function_proto("BatchNormalizationGrad", 17))
    return model


def measures(case, injected: float) -> list[float]:
    """The rows' measures, with an error of so much of the terms' size injected into one element."""
    original_text, tested_text, draw, size = case
    arrays = draw()
    original, tested = (parsed(text, arrays) for text in (original_text, tested_text))
    common = CommonValues(ir.from_proto(original), ir.from_proto(tested), same_builder=False)
    sites = find_sites(ir.from_proto(original), common)
    steps = find_steps(ir.from_proto(original), common, {site.node for site in sites})
    assert len(steps) == 1
    (name,) = steps[0].outputs.values()
    run = onnxruntime.InferenceSession(original.SerializeToString(), providers=["CPUExecutionProvider"]).run
    (result,) = run([name], {key: a for key, a in arrays.items() if key != "W"})
    result[..., -1] += injected * size(arrays)[..., -1]

    def capture(_names):
        yield {**arrays, name: result}

    check = lock_step(ir.from_proto(tested), steps, capture, implementations=["native", "function"], against="ort")
    assert check.rows
    return [row.measure for row in check.rows]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_right_arithmetic_is_within_the_bounds(case):
    assert max(measures(case, 0.0)) < 0.5


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_error_of_1e_4_in_one_element_is_not(case):
    assert min(measures(case, 1e-4)) > 1.0
