"""Gradients built and run by the oracle, against closed forms and finite differences."""

from __future__ import annotations

import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bngrad.errors import InputError, ModelError, OracleError
from bngrad.oracle import Oracle
from oracle_cases import CNN, CNN_WEIGHTS, cnn_feeds, parse


def test_gradient_outputs_come_in_the_order_asked_for(oracle):
    wrt = CNN_WEIGHTS[::-1]
    built = oracle.build_gradient(parse(CNN), "loss", wrt)
    assert built.gradients == {name: f"{name}_grad" for name in wrt}
    assert [value.name for value in built.model.graph.outputs] == ["loss", *built.gradients.values()]


def test_least_squares(oracle):
    model = parse("""m (float[6,3] X, float[3,2] W, float[6,2] T) => (float loss) {
        P = MatMul (X, W)
        D = Sub (P, T)
        S = Mul (D, D)
        loss = ReduceMean <keepdims = 0> (S)
    }""")
    rng = np.random.default_rng(1)
    X, W, T = (rng.standard_normal(shape).astype(np.float32) for shape in ((6, 3), (3, 2), (6, 2)))
    results = oracle.run(oracle.build_gradient(model, "loss", ["W"]).model, {"X": X, "W": W, "T": T})
    np.testing.assert_allclose(results["loss"], np.mean((X @ W - T) ** 2), rtol=1e-6)
    np.testing.assert_allclose(results["W_grad"], X.T @ (X @ W - T) / 6, rtol=1e-5, atol=1e-6)


def test_batch_norm(oracle):
    """dbias = sum dy, dscale = sum dy*xhat, dx = scale*inv_std*(dy - (dbias + xhat*dscale)/M)."""
    model = parse("""m (float[4,3,5] x, float[3] s, float[3] b, float[3] m, float[3] v, float[4,3,5] dy)
        => (float loss) {
        y, nm, nv = BatchNormalization <training_mode = 1, epsilon = 1e-3> (x, s, b, m, v)
        p = Mul (y, dy)
        loss = ReduceSum <keepdims = 0> (p)
    }""")
    rng = np.random.default_rng(2)
    x, dy = (rng.standard_normal((4, 3, 5)).astype(np.float32) for _ in range(2))
    s, b = (rng.standard_normal(3).astype(np.float32) for _ in range(2))
    feeds = {"x": x, "s": s, "b": b, "m": b, "v": s * s, "dy": dy}
    results = oracle.run(oracle.build_gradient(model, "loss", ["x", "s", "b"]).model, feeds)

    wide, dwide, column = x.astype(np.float64), dy.astype(np.float64), (1, 3, 1)
    inv_std = 1 / np.sqrt(wide.var((0, 2)) + 1e-3)
    xhat = (wide - wide.mean((0, 2)).reshape(column)) * inv_std.reshape(column)
    dbias, dscale = dwide.sum((0, 2)), (dwide * xhat).sum((0, 2))
    dx = dwide - (dbias.reshape(column) + xhat * dscale.reshape(column)) / 20
    dx *= (s * inv_std).reshape(column)
    for name, expected in {"x": dx, "s": dscale, "b": dbias}.items():
        np.testing.assert_allclose(results[f"{name}_grad"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CNN_WEIGHTS)
def test_finite_differences(oracle, training, name):
    feeds = cnn_feeds()
    gradient = oracle.run(training, feeds, [f"{name}_grad"])[f"{name}_grad"]
    direction = np.random.default_rng(3).standard_normal(gradient.shape).astype(np.float32)
    direction /= np.linalg.norm(direction)
    step = np.float32(2e-3)
    with oracle.load(training) as session:
        high, low = (
            float(session.run({**feeds, name: feeds[name] + sign * step * direction}, ["loss"])["loss"])
            for sign in (1, -1)
        )
    assert (high - low) / (2 * step) == pytest.approx(float(np.sum(gradient * direction)), rel=0.03, abs=3e-3)


def test_pooling_gradients_take_the_batch_size_of_the_feeds(oracle, training):
    """ORT's kernels take a symbolic batch for one of 0; the session gives them the numbers of the feeds."""
    with oracle.load(training) as session:
        for batch in (3, 5, 3):
            fixed = parse(CNN.replace("[N", f"[{batch}"))
            expected = oracle.run(oracle.build_gradient(fixed, "loss", CNN_WEIGHTS).model, cnn_feeds(batch))
            results = session.run(cnn_feeds(batch))
            assert all(np.array_equal(results[name], expected[name]) for name in expected)


def test_pooling_gradient_of_unknown_shape_is_refused(oracle):
    model = parse("""m (float[1,1,4,4] x, float[1] w) => (float loss) {
        a = Mul (x, w)
        p = AveragePool <kernel_shape = [2, 2]> (a)
        loss = ReduceSum <keepdims = 0> (p)
    }""")
    model.graph.input[0].type.tensor_type.shape.dim[0].Clear()
    training = oracle.build_gradient(model, "loss", ["w"]).model
    with pytest.raises(OracleError, match="symbolic dimension"):
        oracle.run(training, {"x": np.ones((2, 1, 4, 4), np.float32), "w": np.ones(1, np.float32)})


def test_feeds_stay_as_they_are(oracle, training):
    """ORT writes new running statistics over the arrays that it is fed: those of the worker, not ours."""
    feeds = cnn_feeds()
    before = {name: value.copy() for name, value in feeds.items()}
    first = oracle.run(training, feeds, ["loss"])
    again = oracle.run(training, feeds, ["loss"])
    assert first["loss"] == again["loss"]
    assert all(np.array_equal(feeds[name], before[name]) for name in feeds)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int64, np.int8, np.uint32, np.bool_])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_arrays_survive_the_journey(oracle, dtype, shape):
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Identity", ["a"], ["b"])],
        "g",
        [value("a", element, shape)],
        [value("b", element, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    sent = np.asarray(np.random.default_rng(0).integers(0, 2, shape), dtype, order="F")
    got = oracle.run(model, {"a": sent})["b"]
    assert (got.dtype, got.shape, got.tolist()) == (sent.dtype, sent.shape, sent.tolist())


def test_outputs_asked_for_twice_or_not_at_all(oracle, training):
    assert list(oracle.run(training, cnn_feeds(), ["b2_grad", "loss"])) == ["b2_grad", "loss"]
    assert len(oracle.run(training, cnn_feeds())) == 1 + len(CNN_WEIGHTS)


def no_feed(feeds):
    del feeds["w1"]


def unknown_feed(feeds):
    feeds["w3"] = feeds["w1"]


def wrong_shape(feeds):
    feeds["w1"] = feeds["w1"][:, :2]


def wrong_type(feeds):
    feeds["w1"] = feeds["w1"].astype(np.float64)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [(no_feed, "w1"), (unknown_feed, "w3"), (wrong_shape, "w1"), (wrong_type, "double")],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_wrong_feeds(oracle, training, spoil, message):
    feeds = cnn_feeds()
    spoil(feeds)
    with pytest.raises(OracleError, match=message) as caught:
        oracle.run(training, feeds)
    assert "\n" not in str(caught.value)
    assert "onnxruntime_src" not in str(caught.value)
    assert oracle.run(training, cnn_feeds(), ["loss"])["loss"].shape == ()


def test_types_that_numpy_lacks_are_refused(oracle, training):
    with pytest.raises(InputError, match="'x' is bfloat16"):
        oracle.run(training, {**cnn_feeds(), "x": np.ones((3, 3, 8, 8), ml_dtypes.bfloat16)})


@pytest.mark.parametrize(
    ("op", "message"), [("Sum", "has not been registered: Sum"), ("Transpose", "unordered_map::at")]
)
def test_what_the_builder_refuses(oracle, op, message):
    model = parse(f"m (float[2,2] w) => (float loss) {{ a = {op} (w)\n loss = ReduceSum <keepdims = 0> (a) }}")
    with pytest.raises(OracleError, match=message) as caught:
        oracle.build_gradient(model, "loss", ["w"])
    assert str(caught.value).startswith("building the gradient of 'loss' failed in the oracle: ")


def test_weights_elsewhere(oracle):
    model = parse("m (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> { y = Add (x, w) }")
    model.graph.initializer[0].data_location = TensorProto.EXTERNAL
    model.graph.initializer[0].external_data.add(key="location", value="weights.bin")
    with pytest.raises(ModelError, match="load_external_data_for_model"):
        oracle.run(model, {"x": np.ones(2, np.float32)})


def test_library_that_is_none(oracle, training, tmp_path):
    (tmp_path / "library.so").write_text("no library")
    with pytest.raises(OracleError, match=r"library\.so"):
        oracle.run(training, cnn_feeds(), library=tmp_path / "library.so")


def test_nothing_stays_behind(environment, training, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Oracle(python=environment.python) as opened:
        opened.run(training, cnn_feeds())
        (scratch,) = tmp_path.iterdir()
        assert [path.name for path in scratch.iterdir()] == ["stderr.txt"]
    assert not list(tmp_path.iterdir())
    with pytest.raises(OracleError, match="is closed"):
        opened.run(training, cnn_feeds())


def test_opening_is_all_or_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(OracleError, match="does not start"):
        Oracle(python=Path("/nonexistent/python")).__enter__()
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_a_large_model(oracle):
    """100 MB of weights that are not inputs, run three times."""
    value = helper.make_tensor_value_info
    weights = np.random.default_rng(0).standard_normal((5000, 5000)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "large",
        [value("x", TensorProto.FLOAT, [1, 5000])],
        [value("y", TensorProto.FLOAT, [1, 5000])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with oracle.load(model) as session:
        for index in range(3):
            x = np.eye(1, 5000, index, dtype=np.float32)
            np.testing.assert_array_equal(session.run({"x": x})["y"][0], weights[index])
    onnx.checker.check_model(model)
