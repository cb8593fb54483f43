"""Gradients of loops that read and make sequences, as PyTorch's scripted loops do, against central differences."""

from __future__ import annotations

import numpy as np
import onnx.numpy_helper
import onnx.parser
import onnxruntime
import pytest

import bngrad
from bngrad.errors import UnsupportedNodeError

STEP = "a = MatMul (h, w) d = Add (a, xi) ho = Tanh (d)"
MODEL = """<ir_version: 8, opset_import: ["" : 18]>
g (double[T, N, 3] x, double[3, 3] w, double[N, 3] h0, double[K] weights%s) => (double loss)
<int64 zero = {0}, int64 last = {-1}> {
  xs = SplitToSequence <axis = 0, keepdims = 0> (x)
  n = SequenceLength (xs)
  %s
  hn, s = Loop <body = b (int64 i, bool c, double[N, 3] h, seq(double) p)
    => (bool co, double[N, 3] ho, seq(double) q) {
    co = Identity (c)
    xi = SequenceAt (xs, i)
    %s
  }> (n, , h0, e)
  %s
  flat = Reshape (y, minus)
  p = Mul (flat, weights)
  loss = ReduceSum <keepdims = 0> (p)
}"""
EMPTY = "e = SequenceEmpty <dtype = 11> () minus = Constant <value_ints = [-1]> ()"
FIRST = "e = SequenceConstruct (h0) minus = Constant <value_ints = [-1]> ()"
APPEND = f"{STEP} q = SequenceInsert (p, ho)"
CASES = {
    "stacked": (EMPTY, APPEND, "y = ConcatFromSequence <axis = 0, new_axis = 1> (s)"),
    "stacked behind the batch": (EMPTY, APPEND, "y = ConcatFromSequence <axis = 1, new_axis = 1> (s)"),
    "stacked as the last axis": (EMPTY, APPEND, "y = ConcatFromSequence <axis = -1, new_axis = 1> (s)"),
    "joined": (EMPTY, APPEND, "y = ConcatFromSequence <axis = 0> (s)"),
    "joined along the last axis": (EMPTY, APPEND, "y = ConcatFromSequence <axis = -1> (s)"),
    "the last": (EMPTY, APPEND, "y = SequenceAt (s, last)"),
    "of the data": (EMPTY, f"{STEP} v = Sin (xi) q = SequenceInsert (p, v)", "y = SequenceAt (s, zero)"),
    "with a first one": (FIRST, APPEND, "y = ConcatFromSequence <axis = 1, new_axis = 1> (s)"),
    "by the length": (EMPTY, APPEND, "l = SequenceLength (s) m = Sub (l, l) y = SequenceAt (s, m)"),
}


def parsed(begin, body, end, more=""):
    return onnx.parser.parse_model(MODEL % (more, begin, body, end))


def run(model, outputs, feeds):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(outputs, feeds)


@pytest.mark.parametrize("steps", [1, 4], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_gradients(name, steps):
    model, rng = parsed(*CASES[name]), np.random.default_rng(0)
    feeds = {key: 0.5 * rng.standard_normal(shape) for key, shape in shapes(steps).items()}
    feeds["weights"] = rng.standard_normal(size_of(name, steps))
    wrt = ["x"] if name == "of the data" else ["x", "w", "h0"]
    graph = bngrad.differentiate(model, wrt=wrt)
    ops = {node.op_type for node in graph.graph.node}
    assert not [op for op in ops if "Sequence" in op]
    gradients = run(graph, [f"{key}_grad" for key in wrt], feeds)
    for key, gradient in zip(wrt, gradients, strict=True):
        direction = rng.standard_normal(feeds[key].shape)
        ends = [run(model, ["loss"], feeds | {key: feeds[key] + e * direction})[0] for e in (-1e-5, 1e-5)]
        slope = (ends[1] - ends[0]) / 2e-5
        assert np.sum(gradient * direction) == pytest.approx(slope, rel=1e-6, abs=1e-8)


def shapes(steps):
    return {"x": (steps, 2, 3), "w": (3, 3), "h0": (2, 3)}


def size_of(name, steps):
    single = name in ("the last", "of the data", "by the length")
    return 6 if single else 6 * (steps + (name == "with a first one"))


def test_a_size_of_1_drops_the_dimension_as_in_onnx_runtime():
    """PyTorch's exporter writes unbind so; by ONNX's definition each part has a dimension of 1."""
    model = parsed(*CASES["stacked"])
    (split,) = (node for node in model.graph.node if node.op_type == "SplitToSequence")
    split.input.append("single")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1), "single"))
    feeds = {key: np.ones(shape) for key, shape in shapes(4).items()} | {"weights": np.ones(size_of("stacked", 4))}
    (loss,) = run(model, ["loss"], feeds)
    without = bngrad.differentiate(parsed(*CASES["stacked"]), wrt=["x"])
    results = [
        run(graph, ["loss", "x_grad"], feeds) for graph in (bngrad.differentiate(model, wrt=["x"]), without)
    ]
    assert results[0][0] == pytest.approx(loss, rel=1e-12)
    np.testing.assert_array_equal(results[0][1], results[1][1])


SHAPES = """<ir_version: 8, opset_import: ["" : 18]>
g (float[4, 3] x, int64[K] sizes, float[3, 3] w) => (float loss)
<int64 single = {1}, int64 zero = {0}, float[4, 3] r, float[%s] a> {
  s = SplitToSequence <axis = 0, keepdims = 0> (x, single)
  a = SequenceAt (s, zero)
  r = Reshape (x, sizes)
  h = MatMul (r, w)
  n = LayerNormalization (h, a)
  y = Mul (n, a)
  loss = ReduceSum <keepdims = 0> (y)
}"""


@pytest.mark.parametrize("shape", ["1, 3", "3"])
def test_a_size_of_1_keeps_the_shapes_that_it_does_not_change(shape):
    """Inference alone does not know the rank of r; that of a may be ONNX's or ONNX Runtime's."""
    model = onnx.parser.parse_model(SHAPES % shape)
    feeds = {"x": np.ones((4, 3), "f"), "sizes": np.array([4, 3]), "w": np.eye(3, dtype="f")}
    gradient = run(bngrad.differentiate(model, wrt=["w"]), ["w_grad"], feeds)[0]
    assert gradient.shape == (3, 3)


def test_a_loop_of_nothing_else():
    """ONNX has no Loop with a single input."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
    g (double[3] x, int64 n) => (double loss) {
      e = SequenceEmpty <dtype = 11> ()
      s = Loop (n, , e) <body = b (int64 k, bool c, seq(double) a) => (bool d, seq(double) r) {
        d = Identity (c) f = CastLike (k, x) v = Mul (x, f) r = SequenceInsert (a, v)
      }>
      y = ConcatFromSequence <axis = 0> (s)
      loss = ReduceSum <keepdims = 0> (y)
    }""")
    graph = bngrad.differentiate(model, wrt=["x"])
    (gradient,) = run(graph, ["x_grad"], {"x": np.ones(3), "n": np.array(4)})
    np.testing.assert_array_equal(gradient, np.full(3, 6.0))


REFUSED = {
    "at a position": (EMPTY, f"{STEP} z = Sub (i, i) q = SequenceInsert (p, ho, z)", CASES["stacked"][2], ""),
    "read in the body": (
        FIRST,
        f"{STEP} m = SequenceAt (p, zero) v = Add (ho, m) q = SequenceInsert (p, v)",
        CASES["stacked"][2],
        "",
    ),
    "an input": ("minus = Constant <value_ints = [-1]> ()", APPEND, CASES["stacked"][2], ", seq(double) e"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_loops_are_refused(name):
    *parts, more = REFUSED[name]
    with pytest.raises(UnsupportedNodeError, match=r"ConcatFromSequence|Loop"):
        bngrad.differentiate(parsed(*parts, more), wrt=["x", "h0"])


APART = """<ir_version: 8, opset_import: ["" : 18]>
g (double[T, N, 3] x, double[3, 3] w, double[N, 3] h0) => (double loss%s) <int64 last = {-1}> {
  xs = SplitToSequence <axis = 0, keepdims = 0> (x)
  n = SequenceLength (xs)
  e = SequenceEmpty <dtype = %s> ()
  hn, s = Loop <body = b (int64 i, bool c, double[A, 3] h, %s p) => (bool co, double[B, 3] ho, %s q) {
    co = Identity (c)
    xi = SequenceAt (xs, i)
    v = %s
    ho = Concat <axis = 0> (v, xi)
    k = Shape <end = 1> (v)
    q = SequenceInsert (p, %s)
  }> (n, , h0, e)
  %s
  f = ReduceSum <keepdims = 0> (r)
  hw = MatMul (h0, w)
  y = Mul (hw, f)
  loss = ReduceSum <keepdims = 0> (y)
}"""
FLOATS, INTEGERS = ("11", "seq(double)", "seq(double)"), ("7", "seq(int64)", "seq(int64)")
DATA, LAYER = "Identity (h)", "MatMul (h, w)"
WITHOUT_GRADIENT = {
    "of data": ("", *FLOATS, DATA, "ho", "r = SequenceAt (s, last)"),
    "of data, joined": ("", *FLOATS, DATA, "ho", "r = ConcatFromSequence <axis = 0> (s)"),
    "the length": ("", *FLOATS, LAYER, "ho", "m = SequenceLength (s) r = Cast <to = 11> (m)"),
    "of integers": ("", *INTEGERS, LAYER, "k", "m = SequenceAt (s, last) r = Cast <to = 11> (m)"),
    "for another output": (
        ", double[R, 3] out",
        *FLOATS,
        LAYER,
        "ho",
        "r = Constant <value = double {3}> () out = SequenceAt (s, last)",
    ),
}


@pytest.mark.parametrize("name", WITHOUT_GRADIENT)
def test_loops_without_a_gradient_stay(name):
    """The tensors of their sequences differ in shape, those of a scan output may not."""
    model, rng = onnx.parser.parse_model(APART % WITHOUT_GRADIENT[name]), np.random.default_rng(0)
    feeds = {key: rng.standard_normal(shape) for key, shape in shapes(4).items()}
    outputs = [output.name for output in model.graph.output]
    want = run(model, outputs, feeds)
    graph = bngrad.differentiate(model, loss="loss", wrt=["w"])
    *got, gradient = run(graph, [*outputs, "w_grad"], feeds)
    for value, expected in zip(got, want, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-12)
    factor = want[0] / (feeds["h0"] @ feeds["w"]).sum()
    np.testing.assert_allclose(gradient, factor * np.tile(feeds["h0"].sum(axis=0)[:, None], 3), rtol=1e-9)
