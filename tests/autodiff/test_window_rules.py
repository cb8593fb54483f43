"""Gradients of pools that central differences do not check: windows of zeros, and places that runtimes choose."""

from __future__ import annotations

import numpy as np
import pytest

from autodiff.gradient_cases import Case, lowered
from bngrad.runtime.session import session
from bngrad.validation.float64 import evaluate


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("op", ["LpPool <kernel_shape = [2], strides = [2], p = {}>", "GlobalLpPool <p = {}>"])
def test_a_window_of_zeros_has_the_gradient_0(op, p):
    case = Case("zeros", "float[1, 2, 4] x", f"y = {op.format(p)} (x)", dims=({},))
    x = np.zeros([1, 2, 4], np.float32)
    x[0, 1] = 0, 0, 3, 4
    weight = np.ones([1, 2, 1 if op.startswith("Global") else 2], np.float32)
    (gradient,) = session(lowered(case), "function").run(["x_grad"], {"x": x, "y_weight": weight})
    y = np.sum(x[0, 1] ** p) ** (1 / p)
    np.testing.assert_allclose(gradient, np.sign(x) * (x / y) ** (p - 1), rtol=1e-6)


def unpooled(feeds, outputs):
    """Unpools [1, 1, 2, 2] to a shape beyond the natural one, on ONNX Runtime and by ONNX's definition."""
    attributes = "kernel_shape = [2, 2], strides = [2, 2]"
    inputs = "float[1, 1, 2, 2] x, int64[1, 1, 2, 2] i, int64[4] s"
    model = lowered(Case("unpool", inputs, f"y = MaxUnpool <{attributes}> (x, i, s)", dims=({},)))
    model.graph.output.extend(value for value in model.graph.value_info if value.name == "y")
    yield dict(zip(outputs, session(model, "function").run(outputs, feeds), strict=True))
    yield evaluate(model, feeds, outputs)


def test_the_gradient_of_an_unpooling_is_where_the_runtime_puts_the_elements():
    """ONNX numbers the places of the natural shape, and ONNX Runtime those of output_shape."""
    x = np.array([[[[1, 2], [3, 4]]]], np.float32)
    indices = np.array([[[[5, 7], [13, 15]]]])
    weight = np.arange(25, dtype=np.float32).reshape(1, 1, 5, 5)
    feeds = {"x": x, "i": indices, "s": np.array([1, 1, 5, 5]), "y_weight": weight}
    places = []
    for results in unpooled(feeds, ["y", "x_grad"]):
        places.append([int(np.flatnonzero(results["y"] == number)[0]) for number in (1, 2, 3, 4)])
        np.testing.assert_array_equal(results["x_grad"].ravel(), places[-1])
    assert places == [[5, 7, 13, 15], [6, 8, 16, 18]]
