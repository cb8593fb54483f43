"""Values between nodes: the right ones, to the last bit the same however they are cut into chunks."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from bngrad.errors import InputError, ModelError
from oracle_cases import cnn_feeds, parse


def computed(model):
    return [name for node in model.graph.node for name in node.output if name]


def merged(chunks):
    values = {}
    for chunk in chunks:
        assert not values.keys() & chunk.keys()
        values |= chunk
    return values


@pytest.fixture(scope="module")
def whole(oracle, training):
    return merged(oracle.capture(training, cnn_feeds(), computed(training)))


@pytest.mark.parametrize("max_bytes", [1, 1000, 5000, 20000])
def test_chunks_do_not_matter(oracle, training, whole, max_bytes):
    chunks = list(oracle.capture(training, cnn_feeds(), computed(training), max_bytes))
    values = merged(chunks)
    assert list(values) == computed(training)
    assert all(np.array_equal(values[name], whole[name]) for name in whole)
    assert all(values[name].dtype == whole[name].dtype for name in whole)
    assert len(chunks) > 1
    assert all(len(chunk) == 1 or sum(v.nbytes for v in chunk.values()) <= max_bytes for chunk in chunks)


def test_order_and_company_do_not_matter(oracle, training, whole):
    names = computed(training)[::-1]
    values = merged(oracle.capture(training, cnn_feeds(), names, 3000))
    assert list(values) == names
    assert all(np.array_equal(values[name], whole[name]) for name in whole)
    alone = merged(oracle.capture(training, cnn_feeds(), ["r", "r", "loss"]))
    assert list(alone) == ["r", "loss"]
    assert np.array_equal(alone["r"], whole["r"])


def test_no_capture_is_optimized(oracle):
    """ORT folds the scale into the convolution unless something else reads what lies between."""
    model = parse("""m (float[2,3,8,8] x) => (float[2,4,8,8] y)
        <float[4,3,3,3] w, float[4,1,1] s = {0.3, 1.7, 0.9, 3.1}> {
        c = Conv <pads = [1, 1, 1, 1]> (x, w)
        y = Mul (c, s)
    }""")
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((4, 3, 3, 3)).astype(np.float32)
    model.graph.initializer.insert(0, onnx.numpy_helper.from_array(weights, "w"))
    feeds = {"x": rng.standard_normal((2, 3, 8, 8)).astype(np.float32)}
    with oracle.load(model, optimize=True) as session:
        alone = merged(session.capture(feeds, ["y"]))
        both = merged(session.capture(feeds, ["c", "y"]))
        assert np.array_equal(alone["y"], both["y"])
        assert not np.array_equal(alone["y"], session.run(feeds)["y"])  # or this test proves nothing


def test_values_are_right(oracle, training, whole):
    feeds = cnn_feeds()
    outputs = oracle.run(training, feeds)
    for name, value in outputs.items():
        np.testing.assert_allclose(whole[name], value, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(whole["r"], np.maximum(whole["y"], 0))
    np.testing.assert_allclose(whole["saved_mean_def"], whole["c"].mean((0, 2, 3)), atol=1e-6)
    np.testing.assert_allclose(whole["new_mean"], 0.9 * feeds["mean"] + 0.1 * whole["saved_mean_def"], atol=1e-6)


def test_inputs_and_initializers(oracle):
    model = parse("""m (float[2] x, float[2] w) => (float[2] y)
        <float[2] w = {1.0, 2.0}, float[2] v = {3.0, 4.0}> { z = Add (x, w)
        y = Mul (z, v) }""")
    x = np.array([5, 6], np.float32)
    names = ["v", "z", "x", "w", "y"]
    values = merged(oracle.capture(model, {"x": x}, names, 8))
    assert {name: value.tolist() for name, value in values.items()} == {
        "v": [3, 4], "z": [6, 8], "x": [5, 6], "w": [1, 2], "y": [18, 32]
    }  # fmt: skip
    assert list(values) == names
    values["x"][:] = 0
    assert x.tolist() == [5, 6]
    (fed,) = oracle.capture(model, {"x": x, "w": x}, ["w", "z"])
    assert (fed["w"].tolist(), fed["z"].tolist()) == ([5, 6], [10, 12])


def test_types_other_than_float(oracle):
    model = parse("""m (float[4] x) => (float[4] y) {
        b = Less (x, x)
        i = Cast <to = 7> (x)
        d = Cast <to = 11> (x)
        y = Neg (x)
    }""")
    (chunk,) = oracle.capture(model, {"x": np.arange(4, dtype=np.float32)}, ["b", "i", "d"])
    assert [value.dtype.name for value in chunk.values()] == ["bool", "int64", "float64"]
    assert chunk["i"].tolist() == [0, 1, 2, 3]


def test_unknown_name(oracle, training):
    with pytest.raises(ModelError, match="did you mean 'saved_mean_def'"):
        list(oracle.capture(training, cnn_feeds(), ["c", "saved_mean_de"]))


def test_input_that_was_not_given(oracle, training):
    feeds = cnn_feeds()
    del feeds["x"]
    with pytest.raises(InputError, match="'x'"):
        list(oracle.capture(training, feeds, ["x"]))


def test_a_capture_may_be_abandoned(oracle, training):
    chunks = oracle.capture(training, cnn_feeds(), computed(training), 1)
    assert next(chunks)
    chunks.close()
    assert oracle.run(training, cnn_feeds(), ["loss"])
