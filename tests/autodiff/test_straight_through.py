"""Roundings, whose gradient is the identity within the range of the integers: QuantizeLinear, DequantizeLinear."""

from __future__ import annotations

import re
import warnings

import ml_dtypes
import numpy as np
import onnx
import pytest

import bngrad
from bngrad.errors import ModelError, UnsupportedNodeError

PAIR = "q = QuantizeLinear {a}(x, s, z) y = DequantizeLinear {a}(q, s, z)"
SHAPE = (2, 4, 6)
RNG = np.random.default_rng(4)
X, C = (RNG.normal(size=SHAPE).astype("f") for _ in range(2))


def gradients(nodes, values, wrt=("x", "s"), *, opset=21, x_type="float", **options):
    """The gradients of the sum of y times C, and the values of y."""
    arrays = {"x": X.astype({"float": "f", "float16": np.float16}[x_type]), "c": C, **values}
    text = f"""<ir_version: 10, opset_import: ["" : {opset}]> g () => (float loss, y) {{
        {nodes} w = Cast <to = 1> (y) p = Mul (w, c) loss = ReduceSum <keepdims = 0> (p) }}"""
    model = onnx.parser.parse_model(text.replace(", y)", f", {x_type}[2, 4, 6] y)"))
    for name, value in arrays.items():
        if re.search(rf"[(, ]{name}[,)]", nodes + " (c)"):
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    graph = bngrad.differentiate(model, wrt=list(wrt), loss="loss", **options)
    names = bngrad.read_training_graph(graph).gradients
    results = bngrad.session(graph).run([*names.values(), "y"], {})
    return dict(zip([*names, "y"], results, strict=True))


def along(values, axis):
    """The values of each index of an axis, in the rank of the data."""
    shape = [1] * len(SHAPE)
    shape[axis] = -1
    return np.asarray(values).reshape(shape)


# name: (attributes, scale, zero point, both for each element, the sum over the elements of a scale)
LAYOUTS = {
    "one": ("", 0.01, 3, lambda v: v, lambda g: g.sum()),
    "of each channel": (
        "",
        [0.01, 0.02, 0.004, 0.1],
        [0, 5, -3, 7],
        lambda v: along(v, 1),
        lambda g: g.sum((0, 2)),
    ),
    "of each column": (
        "<axis = -1> ",
        np.linspace(0.004, 0.1, 6),
        np.arange(6),
        lambda v: along(v, 2),
        lambda g: g.sum((0, 1)),
    ),
    "of blocks": (
        "<axis = 2, block_size = 3> ",
        np.linspace(0.004, 0.1, 16).reshape(2, 4, 2),
        np.arange(16).reshape(2, 4, 2) - 8,
        lambda v: np.repeat(v, 3, axis=2),
        lambda g: g.reshape(2, 4, 2, 3).sum(3),
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients(layout):
    attributes, scale, zero, spread, total = LAYOUTS[layout]
    scale = np.asarray(scale, "f")
    actual = gradients(PAIR.format(a=attributes), {"s": scale, "z": np.asarray(zero, np.int8)})
    compare(actual, spread(scale), spread(np.asarray(zero)), -128, 127, total)


def compare(actual, scale, zero, low, high, total=np.sum):
    rounded = np.rint(X / scale) + zero
    inside = (rounded >= low) & (rounded <= high)
    assert 0 < inside.mean() < 1
    q = np.clip(rounded, low, high) - zero
    np.testing.assert_allclose(actual["y"], q * scale, rtol=1e-5)
    np.testing.assert_array_equal(actual["x"], C * inside)
    np.testing.assert_allclose(actual["s"], total(C * (q - inside * (X / scale))), rtol=1e-4, atol=1e-4)


TYPES = {
    "uint8": (np.uint8, 0.01, 100, 13),
    "int16": (np.int16, 5e-5, -9, 21),
    "uint16": (np.uint16, 3e-5, 30000, 21),
    "int4": (ml_dtypes.int4, 0.1, 1, 21),
    "uint4": (ml_dtypes.uint4, 0.1, 9, 21),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in ("uint16", "uint4"))) for name in TYPES]
)
def test_types(name):
    dtype, scale, zero, opset = TYPES[name]
    values = {"s": np.float32(scale), "z": np.asarray(zero).astype(dtype)}
    limits = ml_dtypes.iinfo(dtype)
    compare(gradients(PAIR.format(a=""), values, opset=opset), np.float32(scale), zero, limits.min, limits.max)


def test_without_a_zero_point():
    nodes = PAIR.format(a="").replace(", z", "")
    compare(gradients(nodes, {"s": np.float32(0.01)}), np.float32(0.01), 0, 0, 255)


@pytest.mark.parametrize("name", ["float8_e4m3fn", pytest.param("float8_e5m2", marks=pytest.mark.long)])
def test_floats_of_8_bits(name):
    dtype = getattr(ml_dtypes, name)
    scale, largest = np.float32(2e-3 if "4" in name else 2e-5), float(ml_dtypes.finfo(dtype).max)
    values = {"s": scale, "z": np.zeros((), dtype)}
    actual = gradients(PAIR.format(a=""), values, opset=19)
    inside = np.abs(X / scale) <= largest
    assert 0 < inside.mean() < 1
    np.testing.assert_array_equal(actual["x"], C * inside)
    q = np.clip(X / scale, -largest, largest).astype(dtype).astype("f")
    np.testing.assert_allclose(actual["s"], (C * (q - inside * X / scale)).sum(), rtol=1e-3)


def test_the_limits_are_those_of_the_rounded_value():
    """127.5 rounds to the even 128, and -128.5 to -128."""
    x = np.resize(np.array([127.49, 127.5, 128, -128, -128.5, -128.6], "f"), SHAPE)
    actual = gradients(PAIR.format(a=""), {"x": x, "s": np.float32(1), "z": np.int8(0)}, ["x"])
    np.testing.assert_array_equal(actual["x"], C * np.resize([1, 0, 0, 1, 1, 0], SHAPE))


def test_a_clip_between_narrows_the_range():
    """PyTorch's exporter writes so what has the range from 0 to 127."""
    nodes = "q = QuantizeLinear (x, s, z) k = Clip (q, , m) y = DequantizeLinear (k, s, z)"
    values = {"s": np.float32(0.01), "z": np.uint8(60), "m": np.uint8(127)}
    compare(gradients(nodes, values), np.float32(0.01), 60, 0, 127)


def test_two_scales():
    """A reader may use another scale: dY t / s."""
    nodes = "q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, t, z)"
    s, t = np.float32(0.01), np.float32(0.04)
    actual = gradients(nodes, {"s": s, "t": t, "z": np.int8(0)}, ["x", "s", "t"])
    q, inside = np.clip(np.rint(X / s), -128, 127), np.abs(np.rint(X / s) + 0.5) < 128
    np.testing.assert_allclose(actual["x"], C * inside * t / s, rtol=1e-5)
    np.testing.assert_allclose(actual["s"], -(C * inside * t * X / s**2).sum(), rtol=1e-4)
    np.testing.assert_allclose(actual["t"], (C * q).sum(), rtol=1e-4)


def test_a_value_that_is_read_twice():
    nodes = "q = QuantizeLinear (x, s) a = DequantizeLinear (q, s) b = DequantizeLinear (q, s) y = Add (a, b)"
    actual = gradients(nodes, {"s": np.float32(0.02)}, ["x"])
    rounded = np.rint(X / np.float32(0.02))
    np.testing.assert_array_equal(actual["x"], 2 * C * ((rounded >= 0) & (rounded <= 255)))


def test_a_computed_scale():
    """The scale is that of the largest value, so that x has a second path."""
    nodes = """a = Abs (x) m = ReduceMax <keepdims = 0> (a) n = Constant <value_float = 100.0> () s = Div (m, n)
        q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z)"""
    actual = gradients(nodes, {"z": np.int8(0)}, ["x"])["x"]
    largest = np.abs(X).argmax()
    scale = np.abs(X).max() / np.float32(100)
    expected = C.copy()
    slope = (C * (np.rint(X / scale) - X / scale)).sum() / 100 * np.sign(X.flat[largest])
    expected.flat[largest] += slope
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_a_dynamic_range():
    """The scale is constant for the gradient, as an observer's is; the range holds every value."""
    nodes = "q, s, z = DynamicQuantizeLinear (x) y = DequantizeLinear (q, s, z)"
    np.testing.assert_array_equal(gradients(nodes, {}, ["x"])["x"], C)


def test_float16():
    nodes = PAIR.format(a="")
    values = {"s": np.float16(0.01), "z": np.int8(3)}
    actual = gradients(nodes, values, x_type="float16", opset=19)
    assert actual["x"].dtype == actual["s"].dtype == np.float16
    rounded = np.rint(X.astype(np.float16).astype("f") / np.float16(0.01).astype("f")) + 3
    inside = np.abs(rounded + 0.5) < 128
    np.testing.assert_allclose(actual["x"], C.astype(np.float16) * inside, rtol=2e-3)


LOOP = """n = Constant <value_int = 2> () t = Constant <value_int = 1> () b = Cast <to = 9> (t)
    y = Loop (n, b, x) <body = g (int64 i, bool go, float[2, 4, 6] v) => (bool o, float[2, 4, 6] r) {{
        o = Identity (go) {} r = Mul (d, d)
    }}>"""


def test_in_a_loop():
    actual = gradients(
        LOOP.format("q = QuantizeLinear (v, s, z) d = DequantizeLinear (q, s, z)"),
        {"s": np.float32(0.02), "z": np.int8(0)},
        ["x"],
    )["x"]

    def rounded(v):
        k = np.rint(v / np.float32(0.02))
        return np.clip(k, -128, 127) * np.float32(0.02), np.abs(k + 0.5) < 128

    first, inside = rounded(X)
    second, also = rounded(first * first)
    np.testing.assert_allclose(actual, C * 2 * second * also * 2 * first * inside, rtol=1e-4, atol=1e-5)


REFUSED = {
    "another op between": "q = QuantizeLinear (x, s, z) r = Reshape (q, k) u = DequantizeLinear (r, s, z)",
    "another op beside": """q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) i = Cast <to = 1> (q)
        u = Mul (i, d)""",
    "a Clip to a computed limit": """q = QuantizeLinear (x, s, z) m = ReduceMax <keepdims = 0> (q)
        r = Clip (q, , m) u = DequantizeLinear (r, s, z)""",
    "a scale": """m = ReduceMax <keepdims = 0> (x) q = QuantizeLinear (c, m, z) u = Cast <to = 1> (q)""",
    "a Loop around the reader": "q = QuantizeLinear (x, s, z)"
    + LOOP.replace("y = Loop", "u = Loop").format("d = DequantizeLinear (q, s, z)"),
}
"""Nodes that make u; x reaches y by another way, too."""
SCALES = {"s": np.float32(0.02), "z": np.int8(0), "k": np.array(SHAPE)}


@pytest.mark.parametrize("how", REFUSED)
def test_refused(how):
    message = (
        "^QuantizeLinear node 'q' .*: it rounds .* through another op than a DequantizeLinear of the same graph"
    )
    with pytest.raises(UnsupportedNodeError, match=message):
        gradients(f"{REFUSED[how]} y = Add (u, x)", SCALES, ["x"])


@pytest.mark.parametrize("how", [how for how in REFUSED if "Loop" not in how])
def test_no_gradient_where_it_is_not_wanted(how):
    actual = gradients(f"{REFUSED[how]} y = Add (u, x)", SCALES, ["x"], straight_through=False)["x"]
    np.testing.assert_array_equal(actual, C)


def test_the_option_stops_pairs_too():
    nodes = PAIR.format(a="").replace("y =", "u =") + " y = Add (u, x)"
    np.testing.assert_array_equal(gradients(nodes, SCALES, ["x"], straight_through=False)["x"], C)
    with pytest.raises(ModelError, match="does not depend on 'x'"):
        gradients(PAIR.format(a=""), SCALES, ["x"], straight_through=False)


def test_the_weights_by_default():
    """Those before a rounding are weights, unless it has no gradient; scales are none."""
    text = """<ir_version: 10, opset_import: ["" : 18]> g (float[N, 2] X) => (float loss)
        <float[2, 2] f = {1, 2, 3, 4}, float s = {0.1}, float[2, 1] w = {1, 2}> {
        q = QuantizeLinear (f, s) d = DequantizeLinear (q, s) m = MatMul (X, d) r = MatMul (m, w)
        loss = ReduceSum <keepdims = 0> (r) }"""
    model = onnx.parser.parse_model(text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = bngrad.differentiate(model)
    assert list(bngrad.read_training_graph(graph).gradients) == ["f", "w"]
    with pytest.warns(bngrad.BngradWarning, match="^'f' keeps its value: QuantizeLinear"):
        graph = bngrad.differentiate(model, straight_through=False)
    assert list(bngrad.read_training_graph(graph).gradients) == ["w"]


def test_validate_says_what_differences_do_not_show():
    text = """<ir_version: 10, opset_import: ["" : 18]> g (float[2, 2] X) => (float loss)
        <float[2, 2] f = {1, 2, 3, 4}, float s = {0.1}> {
        q = QuantizeLinear (f, s) d = DequantizeLinear (q, s) m = MatMul (X, d)
        loss = ReduceSum <keepdims = 0> (m) }"""
    report = bngrad.validate(onnx.parser.parse_model(text), against="numeric")
    checks = {check.name: check for check in report.checks}
    assert "QuantizeLinear node 'q' (outputs q) rounds" in checks["central differences"].skipped
