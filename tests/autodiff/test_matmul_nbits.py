"""MatMulNBits in models: what trains, what is inferred, what is refused."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import bngrad
from bngrad.errors import UnsupportedNodeError

ATTRIBUTES = "K = 32, N = 5, bits = 4, block_size = 16"
RNG = np.random.default_rng(6)
ARRAYS = {
    "b": RNG.integers(0, 256, (5, 2, 8), np.uint8),
    "b2": RNG.integers(0, 256, (32, 1, 8), np.uint8),
    "flat": RNG.integers(0, 256, (5, 16), np.uint8),
    "s": RNG.uniform(0.01, 0.1, (5, 2)).astype("f"),
    "s2": RNG.uniform(0.01, 0.1, (32, 1)).astype("f"),
    "g": np.zeros(32, np.int32),
    "c": np.ones(5, "f"),
    "w": RNG.normal(size=(32, 32)).astype("f"),
}


def model(body, element="float"):
    text = f"""<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
        g ({element}[N, T, 32] x) => (float loss) {{
        {body} f = Cast <to = 1> (y) q = Mul (f, f) loss = ReduceSum <keepdims = 0> (q) }}"""
    result = onnx.parser.parse_model(text)
    for name, array in ARRAYS.items():
        if any(name in node.input for node in result.graph.node):
            half = element == "float16" and array.dtype == np.float32
            value = array.astype(np.float16) if half else array
            result.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return result


def layer(inputs="x, b, s", attributes=ATTRIBUTES):
    return f"y = com.microsoft.MatMulNBits <{attributes}> ({inputs})"


def weight(b, s, columns):
    numbers = np.stack([b & 15, b >> 4], axis=-1).reshape(len(b), -1, 16).astype(float) - 8
    return (numbers * s[..., None].astype(float)).reshape(len(b), -1)[:, :columns]


@pytest.mark.parametrize(("element", "limit"), [("float", 1e-5), ("float16", 1e-2)])
def test_the_gradient_is_that_of_the_dequantized_weight(element, limit):
    x = RNG.normal(size=(2, 3, 32)).astype("f" if element == "float" else np.float16)
    graph = bngrad.differentiate(model(layer(), element), wrt=["x"])
    (actual,) = bngrad.session(graph).run(["x_grad"], {"x": x})
    dense = weight(ARRAYS["b"], ARRAYS["s"].astype(x.dtype), 32)
    expected = 2 * (x.astype(float) @ dense.T) @ dense
    assert actual.dtype == x.dtype
    np.testing.assert_allclose(actual, expected, atol=limit * np.abs(expected).max())


def test_what_is_before_and_after_trains_by_default():
    """Two layers, whose types the model does not state; scales and biases are no weights."""
    second = "K = 5, N = 32, bits = 4, block_size = 16"
    body = f"""m = MatMul (x, w) {layer("m, b, s, , , c").replace("y =", "h =")} r = Relu (h)
        {layer("r, b2, s2", second)}"""
    graph = bngrad.differentiate(model(body))
    assert list(bngrad.read_training_graph(graph).gradients) == ["w"]
    graph = bngrad.differentiate(model(body), wrt=["c"])
    x = RNG.normal(size=(2, 3, 32)).astype("f")
    (actual,) = bngrad.session(graph).run(["c_grad"], {"x": x})
    first, last = weight(ARRAYS["b"], ARRAYS["s"], 32), weight(ARRAYS["b2"], ARRAYS["s2"], 5)
    h = x @ ARRAYS["w"] @ first.T + 1
    dh = 2 * (np.maximum(h, 0) @ last.T) @ last * (h > 0)
    np.testing.assert_allclose(actual, dh.sum((0, 1)), rtol=1e-4)


REFUSED = {
    "scales": (layer(), ["s"], "it has no gradient with respect to input 2, 's'"),
    "an order of columns": (layer("x, b, s, , g"), ["x"], "it has g_idx"),
    "3 bits": (
        layer(attributes=ATTRIBUTES.replace("4", "3", 1)),
        ["x"],
        "it has bits = 3; expected one of 2, 4, 8",
    ),
    "a layout of one device": (
        layer(attributes=f"{ATTRIBUTES}, weight_prepacked = 1"),
        ["x"],
        "it has weight_prepacked = 1",
    ),
    "a weight in two dimensions": (layer("x, flat, s"), ["x"], r"its weight has the shape \[5,16\]"),
    "a new attribute": (layer(attributes=f"{ATTRIBUTES}, later = 1"), ["x"], "it has the attribute 'later'"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused(why):
    body, wrt, message = REFUSED[why]
    with pytest.raises(UnsupportedNodeError, match=f"^com.microsoft.MatMulNBits node 'y' .*: {message}"):
        bngrad.differentiate(model(body), wrt=wrt)
