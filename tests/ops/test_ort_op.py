"""The ops in real ONNX Runtime sessions.

Imports numpy, onnx, onnxruntime and pytest only, and takes the library from BNGRAD_LIBRARY where bngrad is not
installed: test_ort_versions.py runs this very file in environments with other releases of ONNX Runtime.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

GRAD, TRAINING, STATISTICS = "BatchNormalizationGrad", "BatchNormalizationTraining", "BatchNormalizationStatistics"
GRAD_INPUTS = ["dY", "X", "scale", "mean", "inv_std", "axes"]
TRAINING_INPUTS = ["X", "scale", "bias", "running_mean", "running_var", "axes"]
GRAD_OUTPUTS = ["dX", "dscale", "dbias"]
TRAINING_OUTPUTS = ["Y", "new_running_mean", "new_running_var", "saved_mean", "saved_inv_std"]
STATISTICS_OUTPUTS = ["mean", "inv_std"]
TRAINING_ATTRIBUTES = {"epsilon": 1e-3, "momentum": 0.9, "unbiased_running_var": 1}


def library() -> str:
    if path := os.environ.get("BNGRAD_LIBRARY"):
        return path
    from bngrad import native

    return str(native.library_path())


# The textbook, in float64.


def moments(x, axes, epsilon):
    mean = x.mean(axis=axes, keepdims=True)
    return mean, 1 / np.sqrt(np.square(x - mean).mean(axis=axes, keepdims=True) + epsilon)


def expected_grad(feeds, axes, training):
    dy, x, scale, mean, inv_std = (np.asarray(feeds[name], np.float64) for name in GRAD_INPUTS[:5])
    axes = tuple(axis % x.ndim for axis in axes)
    scale, mean, inv_std = (np.expand_dims(p, axes) for p in (scale, mean, inv_std))
    xhat = (x - mean) * inv_std
    m = x.size / scale.size
    dbias, dscale = (s.sum(axis=axes, keepdims=True) for s in (dy, dy * xhat))
    dx = scale * inv_std * (dy - (dbias + xhat * dscale) / m if training else dy)
    return dx, dscale.squeeze(axes), dbias.squeeze(axes)


def expected_training(feeds, axes, epsilon, momentum, unbiased_running_var):
    x, *parameters = (np.asarray(feeds[name], np.float64) for name in TRAINING_INPUTS[:5])
    axes = tuple(axis % x.ndim for axis in axes)
    scale, bias, running_mean, running_var = (np.expand_dims(p, axes) for p in parameters)
    mean, inv_std = moments(x, axes, epsilon)
    var = x.var(axis=axes, keepdims=True)
    m = x.size / scale.size
    var *= m / max(m - 1, 1) if unbiased_running_var else 1
    momentum = float(np.float32(momentum))
    outputs = (
        momentum * running_mean + (1 - momentum) * mean,
        momentum * running_var + (1 - momentum) * var,
        mean,
        inv_std,
    )
    return ((x - mean) * inv_std * scale + bias, *(o.squeeze(axes) for o in outputs))


def assert_close(actual, expected, dtype):
    bound = 1e-6 if dtype == np.float32 else 1e-13
    assert actual.dtype == dtype
    assert actual.shape == expected.shape
    if expected.size:
        assert np.abs(actual - expected).max() <= bound * np.abs(expected).max()


class Op(NamedTuple):
    """A model with one node of ours: every input and output of the graph is the node's."""

    op: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict

    def model(self, feeds, *, axes_constant=True, dims=None):
        def info(name):
            array = feeds[name]
            shape = (
                None
                if dims == "unknown"
                else [None if dims == "free" else f"{name}_{i}" for i in range(array.ndim)]
            )
            return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape)

        inputs = [name for name in self.inputs if name]
        initializers = []
        if axes_constant and "axes" in inputs:
            inputs.remove("axes")
            axes = feeds["axes"]
            initializers = [helper.make_tensor("axes", TensorProto.INT64, axes.shape, axes.tolist())]
        element_type = helper.np_dtype_to_tensor_dtype(feeds["X"].dtype)
        outputs = [helper.make_tensor_value_info(name, element_type, None) for name in self.outputs if name]
        node = helper.make_node(self.op, self.inputs, self.outputs, "the_node", domain="bngrad", **self.attributes)
        graph = helper.make_graph([node], "test", [info(name) for name in inputs], outputs, initializers)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("bngrad", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()

    def run(self, feeds, *, threads=1, **options):
        session = make_session(self.model(feeds, **options), threads)
        names = {i.name for i in session.get_inputs()}
        return session.run(None, {name: value for name, value in feeds.items() if name in names})


def make_session(model, threads=1):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.register_custom_ops_library(library())
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def grad_op(training=1, outputs=GRAD_OUTPUTS):
    return Op(GRAD, GRAD_INPUTS, outputs, {"training_mode": training})


def training_op(outputs=TRAINING_OUTPUTS, **attributes):
    return Op(TRAINING, TRAINING_INPUTS, outputs, TRAINING_ATTRIBUTES | attributes)


def statistics_op(**attributes):
    return Op(STATISTICS, ["X", "axes"], STATISTICS_OUTPUTS, {"epsilon": 1e-3} | attributes)


def make_feeds(op, shape, axes, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    kept = [extent for i, extent in enumerate(shape) if i not in [axis % len(shape) for axis in axes]]
    feeds = {}
    for name in op.inputs:
        if name == "axes":
            feeds[name] = np.array(axes, np.int64)
        elif name in ("X", "dY"):
            feeds[name] = rng.normal(1, 2, shape).astype(dtype)
        else:
            feeds[name] = np.asarray(rng.uniform(0.5, 1.5, kept), dtype)
    return feeds


LAYOUTS = {
    "NCHW": ([2, 3, 4, 5], [0, 2, 3]),
    "NCHW, axes unsorted and negative": ([2, 3, 4, 5], [-1, 0, -2]),
    "NHWC": ([2, 4, 5, 3], [0, 1, 2]),
    "2-D": ([7, 5], [0]),
    "per activation": ([4, 3, 5, 2], [0]),
    "every other of 8": ([2, 3, 2, 3, 2, 2, 2, 3], [0, 2, 4, 6]),
    "all axes": ([3, 4], [0, 1]),
    "no axes": ([3, 4], []),
    "rank 1": ([9], [0]),
    "one channel": ([3, 1, 4, 4], [0, 2, 3]),
    "M = 1": ([1, 6, 1, 1], [0, 2, 3]),
    "large": ([4, 40, 28, 29], [0, 2, 3]),
}
layouts = pytest.mark.parametrize(("shape", "axes"), LAYOUTS.values(), ids=LAYOUTS)
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@dtypes
@layouts
@pytest.mark.parametrize("training", [0, 1])
def test_grad(shape, axes, dtype, training):
    op = grad_op(training)
    feeds = make_feeds(op, shape, axes, dtype)
    for actual, expected in zip(op.run(feeds), expected_grad(feeds, axes, training), strict=True):
        assert_close(actual, expected, dtype)


@dtypes
@layouts
@pytest.mark.parametrize("unbiased", [0, 1])
def test_training(shape, axes, dtype, unbiased):
    op = training_op(unbiased_running_var=unbiased)
    feeds = make_feeds(op, shape, axes, dtype)
    epsilon = float(np.float32(1e-3))
    wanted = expected_training(feeds, axes, epsilon, 0.9, unbiased)
    for actual, expected in zip(op.run(feeds), wanted, strict=True):
        assert_close(actual, expected, dtype)


@dtypes
@layouts
def test_statistics(shape, axes, dtype):
    op = statistics_op()
    feeds = make_feeds(op, shape, axes, dtype)
    wanted = moments(feeds["X"].astype(np.float64), tuple(axes), float(np.float32(1e-3)))
    for actual, expected in zip(op.run(feeds), wanted, strict=True):
        assert_close(actual, expected.squeeze(tuple(axes)), dtype)


@pytest.mark.parametrize(
    "outputs",
    [
        ["Y"],
        ["Y", "", "", "saved_mean", "saved_inv_std"],
        ["Y", "new_running_mean", "new_running_var"],
        ["", "", "", "", "saved_inv_std"],
    ],
    ids=",".join,
)
def test_training_outputs_left_out(outputs):
    feeds = make_feeds(training_op(), [4, 3, 5], [0, 2])
    full = dict(zip(TRAINING_OUTPUTS, training_op().run(feeds), strict=True))
    for name, actual in zip(filter(None, outputs), training_op(outputs).run(feeds), strict=True):
        np.testing.assert_array_equal(actual, full[name])


@pytest.mark.parametrize("outputs", [["dX"], ["", "dscale"], ["", "", "dbias"], ["dX", "", "dbias"]], ids=",".join)
@pytest.mark.parametrize("training", [0, 1])
def test_grad_outputs_left_out(outputs, training):
    feeds = make_feeds(grad_op(), [4, 3, 5], [0, 2])
    full = dict(zip(GRAD_OUTPUTS, grad_op(training).run(feeds), strict=True))
    for name, actual in zip(filter(None, outputs), grad_op(training, outputs).run(feeds), strict=True):
        np.testing.assert_array_equal(actual, full[name])


@pytest.mark.parametrize("shape", [[0, 3, 4], [2, 3, 0]], ids=str)
def test_empty_batch(shape):
    feeds = make_feeds(grad_op(), shape, [0, 2])
    dx, dscale, dbias = grad_op().run(feeds)
    assert dx.shape == tuple(shape)
    np.testing.assert_array_equal(dscale, np.zeros(3))
    np.testing.assert_array_equal(dbias, np.zeros(3))
    y, *statistics = training_op().run(make_feeds(training_op(), shape, [0, 2]))
    assert y.shape == tuple(shape)
    for value in statistics:
        np.testing.assert_array_equal(value, np.full(3, np.nan))


def test_no_channels():
    feeds = make_feeds(grad_op(), [4, 0, 3], [0, 2])
    assert [o.shape for o in grad_op().run(feeds)] == [(4, 0, 3), (0,), (0,)]
    feeds = make_feeds(training_op(), [4, 0, 3], [0, 2])
    assert [o.shape for o in training_op().run(feeds)] == [(4, 0, 3), *[(0,)] * 4]


@pytest.mark.parametrize("shape_and_axes", [([8, 64, 20, 20], [0, 2, 3]), ([9, 30, 30, 21], [0, 1, 2])], ids=str)
@pytest.mark.parametrize("op", [grad_op(), training_op(), statistics_op()], ids=lambda op: op.op)
def test_threads_do_not_change_a_bit(op, shape_and_axes):
    feeds = make_feeds(op, *shape_and_axes)
    runs = [op.run(feeds, threads=threads) for threads in (1, 2, 3, 8, 2)]
    for run in runs[1:]:
        for one, other in zip(runs[0], run, strict=True):
            assert one.tobytes() == other.tobytes()


# What shape inference knows must not change results, and nothing wrong may be inferred.


@pytest.mark.parametrize("dims", ["symbolic", "free", "unknown"])
@pytest.mark.parametrize("axes_constant", [True, False])
@pytest.mark.parametrize("op", [grad_op(), training_op(), statistics_op()], ids=lambda op: op.op)
def test_shapes_known_or_not(op, axes_constant, dims):
    feeds = make_feeds(op, [4, 3, 5], [0, 2])
    expected = op.run(feeds)
    for actual, e in zip(op.run(feeds, dims=dims, axes_constant=axes_constant), expected, strict=True):
        np.testing.assert_array_equal(actual, e)


def test_inferred_shapes():
    for op, shapes in (
        (grad_op(outputs=["dX"]), [["X_0", "X_1", "X_2"]]),
        (training_op(["Y"]), [["X_0", "X_1", "X_2"]]),
    ):
        session = make_session(op.model(make_feeds(op, [4, 3, 5], [0, 2])))
        assert [output.shape for output in session.get_outputs()] == shapes


# Refusals: the message names op and node, what came and what was expected.


def refuse(op, feeds, *expected, **options):
    with pytest.raises(Exception) as info:  # noqa: PT011 - the classes differ between releases
        op.run(feeds, **options)
    message = str(info.value)
    for text in (op.op, *expected):
        assert text in message
    return message


@pytest.mark.parametrize("op", [grad_op(), training_op()], ids=lambda op: op.op)
@pytest.mark.parametrize("wrong", [[4], [1], [3, 1], [], [0]], ids=str)
def test_parameter_of_wrong_shape(op, wrong):
    for name in op.inputs:
        if name in ("X", "dY", "axes"):
            continue
        feeds = make_feeds(op, [2, 3, 4], [0, 2])
        feeds[name] = np.ones(wrong, np.float32)
        got = str(wrong).replace(" ", "")
        refuse(
            op,
            feeds,
            "node 'the_node'",
            f"{name} has shape {got}, expected [3]",
            "[2,3,4] of X without axes [0,2]",
        )


@pytest.mark.parametrize("wrong", [[2, 3, 5], [2, 3], [2, 3, 4, 1], [24]], ids=str)
def test_dy_of_wrong_shape(wrong):
    feeds = make_feeds(grad_op(), [2, 3, 4], [0, 2])
    feeds["dY"] = np.ones(wrong, np.float32)
    got = str(wrong).replace(" ", "")
    refuse(grad_op(), feeds, "node 'the_node'", f"dY has shape {got}, expected [2,3,4]: the shape of X")


@pytest.mark.parametrize("op", [grad_op(), training_op(), statistics_op()], ids=lambda op: op.op)
@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ([0, 3], "3 is out of range for X of shape [2,3,4], expected -3 to 2"),
        ([-4], "-4 is out of range for X of shape [2,3,4], expected -3 to 2"),
        ([2**62], f"{2**62} is out of range"),
        ([0, 2, 0], "axes [0,2,0] name dimension 0 of X of shape [2,3,4] twice"),
        ([2, -1], "axes [2,-1] name dimension 2 of X of shape [2,3,4] twice"),
    ],
    ids=str,
)
@pytest.mark.parametrize("constant", [True, False], ids=["initializer", "input"])
def test_bad_axes(op, axes, expected, constant):
    feeds = make_feeds(op, [2, 3, 4], [0, 2]) | {"axes": np.array(axes, np.int64)}
    refuse(op, feeds, "node 'the_node'", expected, axes_constant=constant)


@pytest.mark.parametrize("op", [grad_op(), training_op(), statistics_op()], ids=lambda op: op.op)
@pytest.mark.parametrize("axes", [np.array(0), np.array([[0, 2]])], ids=["scalar", "matrix"])
def test_axes_of_wrong_rank(op, axes):
    feeds = make_feeds(op, [2, 3, 4], [0, 2]) | {"axes": axes.astype(np.int64)}
    refuse(op, feeds, "node 'the_node'", "axes has shape", "expected a list", axes_constant=False)


@pytest.mark.parametrize("op", [grad_op(), training_op(), statistics_op()], ids=lambda op: op.op)
@pytest.mark.parametrize("shape", [[], [1] * 9], ids=["rank 0", "rank 9"])
def test_bad_rank(op, shape):
    feeds = make_feeds(op, shape, [])
    refuse(op, feeds, "node 'the_node'", f"has rank {len(shape)}, expected 1 to 8")


@pytest.mark.parametrize("value", [None, 2, -1, 1.0, "1", [1]], ids=repr)
def test_bad_training_mode(value):
    op = Op(GRAD, GRAD_INPUTS, GRAD_OUTPUTS, {} if value is None else {"training_mode": value})
    refuse(op, make_feeds(op, [2, 3], [0]), "node 'the_node'", "attribute training_mode")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epsilon", None), ("epsilon", 1), ("epsilon", "1"), ("epsilon", -1.0), ("epsilon", float("nan")),
        ("momentum", None), ("momentum", 1), ("momentum", float("inf")),
        ("unbiased_running_var", None), ("unbiased_running_var", 2), ("unbiased_running_var", 0.0),
    ],
)  # fmt: skip
def test_bad_training_attributes(name, value):
    attributes = TRAINING_ATTRIBUTES | {name: value}
    op = Op(TRAINING, TRAINING_INPUTS, TRAINING_OUTPUTS, {n: v for n, v in attributes.items() if v is not None})
    refuse(op, make_feeds(op, [2, 3], [0]), "node 'the_node'", name)


@pytest.mark.parametrize("epsilon", [None, 1, -1e-3])
def test_bad_statistics_attributes(epsilon):
    op = Op(STATISTICS, ["X", "axes"], STATISTICS_OUTPUTS, {} if epsilon is None else {"epsilon": epsilon})
    refuse(op, make_feeds(op, [2, 3], [0]), "node 'the_node'", "epsilon")


@pytest.mark.parametrize("left_out", range(6))
def test_missing_input(left_out):
    inputs = [name if i != left_out else "" for i, name in enumerate(GRAD_INPUTS)]
    op = Op(GRAD, inputs, GRAD_OUTPUTS, {"training_mode": 1})
    feeds = make_feeds(grad_op(), [2, 3], [0])
    with pytest.raises(Exception, match=GRAD):  # ONNX Runtime's own message, or ours
        op.run(feeds)


@pytest.mark.parametrize("name", ["dY", "scale", "mean"])
def test_mixed_types(name):
    feeds = make_feeds(grad_op(), [2, 3], [0])
    feeds[name] = feeds[name].astype(np.float64)
    with pytest.raises(Exception, match=GRAD):
        grad_op().run(feeds)


def test_axes_of_wrong_type():
    feeds = make_feeds(grad_op(), [2, 3], [0])
    feeds["axes"] = feeds["axes"].astype(np.int32)
    with pytest.raises(Exception, match=GRAD):
        grad_op().run(feeds, axes_constant=False)


REGISTER = "import sys, onnxruntime as o; o.SessionOptions().register_custom_ops_library(sys.argv[1])"


@pytest.mark.parametrize("isa", ["sse9", "AVX2", ""])
def test_unknown_isa_is_refused(isa):
    """In a process of its own: the choice is made once."""
    environment = os.environ | {"BNGRAD_ISA": isa}
    command = [sys.executable, "-c", REGISTER, library()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"BNGRAD_ISA={isa} is unknown, expected one of " in done.stderr


def test_two_registrations():
    """In one session and, separately, in two: the domain is shared, ONNX Runtime says what it thinks of twice."""
    feeds = make_feeds(grad_op(), [2, 3], [0])
    one = make_session(grad_op().model(feeds))
    other = make_session(grad_op().model(feeds))
    inputs = {name: value for name, value in feeds.items() if name != "axes"}
    for a, b in zip(one.run(None, inputs), other.run(None, inputs), strict=True):
        np.testing.assert_array_equal(a, b)
