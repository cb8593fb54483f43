"""The gradients of activations where their terms overflow, and cancel only in exact arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from autodiff.gradient_cases import Case, lowered
from bngrad.runtime.session import session
from bngrad.validation.float64 import evaluate

# The gradient far to the left and to the right.
LIMITS = {
    "Sigmoid(x)": (0, 0),
    "Tanh(x)": (0, 0),
    "Softplus(x)": (0, 1),
    "Softsign(x)": (0, 0),
    "Elu(x)": (0, 1),
    "Selu(x)": (0, 1.0507009873554805),
    "Celu(x)": (0, 1),
    "HardSigmoid(x)": (0, 0),
    "HardSwish(x)": (0, 1),
    "Mish(x)": (0, 1),
    'Gelu<approximate = "none">(x)': (0, 1),
    'Gelu<approximate = "tanh">(x)': (0, 1),
    "com.microsoft.Gelu(x)": (0, 1),
    "com.microsoft.FastGelu(x)": (0, 1),
    "com.microsoft.QuickGelu(x)": (0, 1),
}
FLOATS, HALVES = [100, 1e13, 1e20, 1e30], [50, 300, 3e4]
FLOAT_ALONE = ("Celu", "FastGelu", "QuickGelu")
"""Ops with only float, by the schema of ONNX or of ONNX Runtime."""


@pytest.mark.parametrize("node", LIMITS)
def test_in_float64(node):
    sizes = [100, 1e20, 1e200]
    x = np.array([sign * size for sign in (-1, 1) for size in sizes])
    case = Case(node, "float[N] x", f"y = {node}", opset=20)
    got = evaluate(lowered(case), {"x": x, "y_weight": np.ones_like(x)}, ["x_grad"])["x_grad"]
    np.testing.assert_allclose(got, np.repeat(LIMITS[node], len(sizes)), rtol=1e-6, atol=1e-3)


@pytest.mark.parametrize(
    ("node", "element"),
    [(node, "float") for node in LIMITS]
    + [(node, "float16") for node in LIMITS if not any(op in node for op in FLOAT_ALONE)],
)
def test_on_stock(node, element):
    case = Case(node, f"{element}[N] x", f"y = {node}", opset=20, element=element)
    sizes, dtype = (FLOATS, np.float32) if element == "float" else (HALVES, np.float16)
    x = np.array([sign * size for sign in (-1, 1) for size in sizes], dtype)
    runner = session(lowered(case), "function")
    (got,) = runner.run(["x_grad"], {"x": x, "y_weight": np.ones_like(x)})
    np.testing.assert_allclose(got, np.repeat(LIMITS[node], len(sizes)), rtol=np.finfo(dtype).eps, atol=1e-3)
