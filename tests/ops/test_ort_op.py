"""The ops in real ONNX Runtime sessions.

Imports numpy, onnx, onnxruntime and pytest only, and takes the library from BNGRAD_LIBRARY where bngrad is not
installed: test_ort_versions.py runs this very file in environments with other releases of ONNX Runtime.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

GRAD, TRAINING, STATISTICS = "BatchNormalizationGrad", "BatchNormalizationTraining", "BatchNormalizationStatistics"
RELU_GRAD, GRAD_GRAD = "BatchNormalizationReluGrad", "BatchNormalizationGradGrad"
GRAD_INPUTS = ["dY", "X", "scale", "mean", "inv_std", "axes"]
RELU_GRAD_INPUTS = ["dZ", "Z", *GRAD_INPUTS[1:]]
GRAD_GRAD_INPUTS = ["ddX", "ddscale", "ddbias", *GRAD_INPUTS]
TRAINING_INPUTS = ["X", "scale", "bias", "running_mean", "running_var", "axes"]
ADAM_INPUTS = ["weight", "gradient", "exp_avg", "exp_avg_sq", "coefficients"]
ADAM_OUTPUTS = ["new_weight", "new_exp_avg", "new_exp_avg_sq"]
GRAD_OUTPUTS = ["dX", "dscale", "dbias"]
TRAINING_OUTPUTS = ["Y", "new_running_mean", "new_running_var", "saved_mean", "saved_inv_std"]
STATISTICS_OUTPUTS = ["mean", "inv_std"]
GRAD_GRAD_OUTPUTS = ["d_dY", "d_X", "d_scale"]
TRAINING_ATTRIBUTES = {"epsilon": 1e-3, "momentum": 0.9, "unbiased_running_var": 1}


def library() -> str:
    if path := os.environ.get("BNGRAD_LIBRARY"):
        return path
    from bngrad.runtime import native_library

    return str(native_library.library_path())


# The types. NumPy has no bfloat16: here an array of uint16 is one, by its bits. What goes in and comes out of a
# session is float then, and a Cast of the model's own makes it bfloat16 or back.

FLOAT, DOUBLE, FLOAT16, BFLOAT16 = map(np.dtype, (np.float32, np.float64, np.float16, np.uint16))
ONNX_TYPES = {
    FLOAT: TensorProto.FLOAT,
    DOUBLE: TensorProto.DOUBLE,
    FLOAT16: TensorProto.FLOAT16,
    BFLOAT16: TensorProto.BFLOAT16,
    np.dtype(np.int64): TensorProto.INT64,
    np.dtype(np.int32): TensorProto.INT32,
}
BOUNDS = {FLOAT: 1e-6, DOUBLE: 1e-13, FLOAT16: 5e-4, BFLOAT16: 4e-3}
DATA = ("X", "Y", "dX", "dY", "Z", "dZ", "ddX", "d_dY", "d_X")
SCALES = ("scale", "bias", "dscale", "dbias", "ddscale", "ddbias", "d_scale")


def to_dtype(array, dtype):
    if dtype != BFLOAT16:
        return np.asarray(array, dtype)
    bits = np.asarray(array, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def to_numpy(array):
    return np.asarray(array.astype(np.uint32) << 16).view(np.float32) if array.dtype == BFLOAT16 else array


def float64(array):
    return to_numpy(array).astype(np.float64)


def output_dtype(feeds, name):
    if name in DATA:
        return feeds["X"].dtype
    like = ("scale",) if name in SCALES else ("mean", "running_mean")
    computed = DOUBLE if feeds["X"].dtype == DOUBLE else FLOAT
    return next((feeds[n].dtype for n in like if n in feeds), computed)


# The textbook, in float64.


def moments(x, axes, epsilon):
    mean = x.mean(axis=axes, keepdims=True)
    return mean, 1 / np.sqrt(np.square(x - mean).mean(axis=axes, keepdims=True) + epsilon)


def expected_grad(feeds, axes, training):
    dy, x, scale, mean, inv_std = (float64(feeds[name]) for name in GRAD_INPUTS[:5])
    axes = tuple(axis % x.ndim for axis in axes)
    scale, mean, inv_std = (np.expand_dims(p, axes) for p in (scale, mean, inv_std))
    xhat = (x - mean) * inv_std
    m = x.size / scale.size
    dbias, dscale = (s.sum(axis=axes, keepdims=True) for s in (dy, dy * xhat))
    dx = scale * inv_std * (dy - (dbias + xhat * dscale) / m if training else dy)
    return dx, dscale.squeeze(axes), dbias.squeeze(axes)


def expected_relu_grad(feeds, axes, training):
    dy = np.where(float64(feeds["Z"]) > 0, float64(feeds["dZ"]), 0)
    return expected_grad({**feeds, "dY": dy}, axes, training)


def expected_grad_grad(feeds, axes, training):
    ddx, ddscale, ddbias, dy, x, scale, mean, inv_std = (float64(feeds[name]) for name in GRAD_GRAD_INPUTS[:8])
    axes = tuple(axis % x.ndim for axis in axes)
    ddscale, ddbias, scale, mean, inv_std = (
        np.expand_dims(p, axes) for p in (ddscale, ddbias, scale, mean, inv_std)
    )
    xhat = (x - mean) * inv_std
    m = x.size / scale.size

    def mean_of(t):
        return t.sum(axis=axes, keepdims=True) / m

    def project(t):
        return t - mean_of(t) - xhat * mean_of(t * xhat) if training else t

    product = mean_of(ddx * project(dy))
    d_dy = scale * inv_std * project(ddx) + ddscale * xhat + ddbias
    d_x = ddscale * inv_std * project(dy)
    if training:
        others = mean_of(dy * xhat) * project(ddx) + mean_of(ddx * xhat) * project(dy)
        d_x = d_x - scale * inv_std**2 * (xhat * product + others)
    return d_dy, d_x, (inv_std * product * m).squeeze(axes)


def expected_training(feeds, axes, epsilon, momentum, unbiased_running_var):
    x, *parameters = (float64(feeds[name]) for name in TRAINING_INPUTS[:5])
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


class Op(NamedTuple):
    """A model with one node of ours: every input and output of the graph is the node's."""

    op: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict

    def model(self, feeds, *, axes_constant=True, dims=None, dtype=None):
        def info(name):
            array = feeds[name]
            shape = (
                None
                if dims == "unknown"
                else [None if dims == "free" else f"{name}_{i}" for i in range(array.ndim)]
            )
            return helper.make_tensor_value_info(name, ONNX_TYPES[to_numpy(array).dtype], shape)

        inputs = [name for name in self.inputs if name]
        initializers = []
        if axes_constant and "axes" in inputs:
            inputs.remove("axes")
            axes = feeds["axes"]
            initializers = [helper.make_tensor("axes", TensorProto.INT64, axes.shape, axes.tolist())]
        outputs = {name: dtype or output_dtype(feeds, name) for name in self.outputs if name}
        cast_in = [name for name in inputs if feeds[name].dtype == BFLOAT16]
        cast_out = [name for name, dtype in outputs.items() if dtype == BFLOAT16]
        names_in, names_out = (
            [f"{name}_16" if name in cast else name for name in names]
            for names, cast in ((self.inputs, cast_in), (self.outputs, cast_out))
        )
        nodes = [helper.make_node("Cast", [name], [f"{name}_16"], to=TensorProto.BFLOAT16) for name in cast_in]
        nodes += [helper.make_node(self.op, names_in, names_out, "the_node", domain="bngrad", **self.attributes)]
        nodes += [helper.make_node("Cast", [f"{name}_16"], [name], to=TensorProto.FLOAT) for name in cast_out]
        infos = [
            helper.make_tensor_value_info(name, ONNX_TYPES[FLOAT if name in cast_out else dtype], None)
            for name, dtype in outputs.items()
        ]
        graph = helper.make_graph(nodes, "test", [info(name) for name in inputs], infos, initializers)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("bngrad", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()

    def run(self, feeds, *, threads=1, **options):
        session = make_session(self.model(feeds, **options), threads)
        names = {i.name for i in session.get_inputs()}
        return session.run(None, {name: to_numpy(value) for name, value in feeds.items() if name in names})


def make_session(model, threads=1):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.register_custom_ops_library(library())
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def grad_op(training=1, outputs=GRAD_OUTPUTS):
    return Op(GRAD, GRAD_INPUTS, outputs, {"training_mode": training})


def relu_grad_op(training=1, outputs=GRAD_OUTPUTS):
    return Op(RELU_GRAD, RELU_GRAD_INPUTS, outputs, {"training_mode": training})


def grad_grad_op(training=1, outputs=GRAD_GRAD_OUTPUTS):
    return Op(GRAD_GRAD, GRAD_GRAD_INPUTS, outputs, {"training_mode": training})


def training_op(outputs=TRAINING_OUTPUTS, **attributes):
    return Op(TRAINING, TRAINING_INPUTS, outputs, TRAINING_ATTRIBUTES | attributes)


def statistics_op(**attributes):
    return Op(STATISTICS, ["X", "axes"], STATISTICS_OUTPUTS, {"epsilon": 1e-3} | attributes)


def make_feeds(op, shape, axes, types=(FLOAT, FLOAT, FLOAT), seed=0):
    """Inputs of types T, T1 and T2."""
    rng = np.random.default_rng(seed)
    kept = [extent for i, extent in enumerate(shape) if i not in [axis % len(shape) for axis in axes]]
    data, scale, statistic = types
    feeds = {}
    for name in op.inputs:
        if name == "axes":
            feeds[name] = np.array(axes, np.int64)
        elif name in DATA:
            feeds[name] = to_dtype(rng.normal(1, 2, shape), data)
        else:
            feeds[name] = to_dtype(rng.uniform(0.5, 1.5, kept), scale if name in SCALES else statistic)
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
NAMES = {"float": FLOAT, "double": DOUBLE, "float16": FLOAT16, "bfloat16": BFLOAT16}
TYPES = {
    f"{t}-{t1}-{t2}": (NAMES[t], NAMES[t1], NAMES[t2])
    for t in NAMES
    for t1 in dict.fromkeys((t, "float"))
    for t2 in dict.fromkeys((t, "float"))
}
MODES = {
    "grad": grad_op(1),
    "grad-frozen": grad_op(0),
    "relu_grad": relu_grad_op(1),
    "relu_grad-frozen": relu_grad_op(0),
    "grad_grad": grad_grad_op(1),
    "grad_grad-frozen": grad_grad_op(0),
    "training": training_op(),
    "training-biased": training_op(unbiased_running_var=0),
    "statistics": statistics_op(),
}
OPS = [name for name in MODES if "-" not in name]
every_mode = pytest.mark.parametrize("op", MODES.values(), ids=MODES)
every_op = pytest.mark.parametrize("op", [MODES[name] for name in OPS], ids=OPS)


def check(op, shape, axes, types):
    """One run against the textbook; the bounds are on the error over the largest value."""
    feeds = make_feeds(op, shape, axes, types)
    epsilon = float(np.float32(1e-3))
    if op.op == TRAINING:
        expected = expected_training(feeds, axes, epsilon, 0.9, op.attributes["unbiased_running_var"])
    elif op.op == STATISTICS:
        expected = [m.squeeze(tuple(axes)) for m in moments(float64(feeds["X"]), tuple(axes), epsilon)]
    else:
        textbook = {GRAD: expected_grad, RELU_GRAD: expected_relu_grad, GRAD_GRAD: expected_grad_grad}[op.op]
        expected = textbook(feeds, axes, op.attributes["training_mode"])
    for name, output, other in zip(op.outputs, op.run(feeds), expected, strict=True):
        dtype = output_dtype(feeds, name)
        assert output.dtype == (FLOAT if dtype == BFLOAT16 else dtype)
        assert output.shape == other.shape
        assert np.abs(output.astype(np.float64) - other).max() <= BOUNDS[dtype] * np.abs(other).max()


@every_mode
@layouts
@pytest.mark.parametrize("name", ["float", "double"])
def test_layouts(op, shape, axes, name):
    check(op, shape, axes, (NAMES[name],) * 3)


@every_mode
@pytest.mark.parametrize("types", TYPES.values(), ids=TYPES)
def test_types(op, types):
    for shape, axes in (([2, 3, 4, 5], [0, 2, 3]), ([7, 21], [0])):
        check(op, shape, axes, types)


@every_op
def test_bfloat16_values(op):
    """Without the Casts: values of ONNX Runtime's own that are bfloat16."""
    make = getattr(onnxruntime.OrtValue, "ortvalue_from_numpy_with_onnx_type", None)
    if make is None:
        pytest.skip(f"onnxruntime {onnxruntime.__version__} makes no bfloat16 values from NumPy")
    feeds = make_feeds(op, [4, 3, 5], [0, 2], (BFLOAT16,) * 3)
    model = onnx.load_model_from_string(op.model(feeds, axes_constant=False))
    (node,) = (n for n in model.graph.node if n.domain == "bngrad")
    bare = onnx.NodeProto()
    bare.CopyFrom(node)
    bare.input[:] = op.inputs
    bare.output[:] = op.outputs
    del model.graph.node[:]
    model.graph.node.append(bare)
    for value in (*model.graph.input, *model.graph.output):
        if value.name != "axes":
            dtype = feeds[value.name].dtype if value.name in feeds else output_dtype(feeds, value.name)
            value.type.tensor_type.elem_type = ONNX_TYPES[dtype]
    session = make_session(model.SerializeToString())
    values = {name: make(array, ONNX_TYPES[array.dtype]) for name, array in feeds.items()}
    for output, other in zip(session.run_with_ort_values(None, values), op.run(feeds), strict=True):
        if op.op == STATISTICS:
            assert output.element_type() == TensorProto.FLOAT
            np.testing.assert_array_equal(output.numpy(), other)
            continue
        assert output.element_type() == TensorProto.BFLOAT16
        bits = np.frombuffer((ctypes.c_uint16 * other.size).from_address(output.data_ptr()), np.uint16)
        np.testing.assert_array_equal(to_numpy(bits).reshape(other.shape), other)


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


@pytest.mark.parametrize(
    "outputs", [["d_dY"], ["", "d_X"], ["", "", "d_scale"], ["d_dY", "", "d_scale"]], ids=",".join
)
@pytest.mark.parametrize("training", [0, 1])
def test_grad_grad_outputs_left_out(outputs, training):
    feeds = make_feeds(grad_grad_op(), [4, 3, 5], [0, 2])
    full = dict(zip(GRAD_GRAD_OUTPUTS, grad_grad_op(training).run(feeds), strict=True))
    for name, actual in zip(filter(None, outputs), grad_grad_op(training, outputs).run(feeds), strict=True):
        np.testing.assert_array_equal(actual, full[name])


@pytest.mark.parametrize("shape", [[0, 3, 4], [2, 3, 0]], ids=str)
def test_empty_batch(shape):
    feeds = make_feeds(grad_op(), shape, [0, 2])
    dx, dscale, dbias = grad_op().run(feeds)
    assert dx.shape == tuple(shape)
    np.testing.assert_array_equal(dscale, np.zeros(3))
    np.testing.assert_array_equal(dbias, np.zeros(3))
    *_, d_scale = grad_grad_op().run(make_feeds(grad_grad_op(), shape, [0, 2]))
    np.testing.assert_array_equal(d_scale, np.zeros(3))
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
@every_op
def test_threads_do_not_change_a_bit(op, shape_and_axes):
    feeds = make_feeds(op, *shape_and_axes)
    runs = [op.run(feeds, threads=threads) for threads in (1, 2, 3, 8, 2)]
    for run in runs[1:]:
        for output, other in zip(runs[0], run, strict=True):
            assert output.tobytes() == other.tobytes()


@pytest.mark.parametrize("shape", [[], [0], [5], [3, 70, 5], [40_001]], ids=str)
@pytest.mark.parametrize("dtype", [FLOAT, DOUBLE], ids=["float", "double"])
def test_adam_update(dtype, shape):
    op = Op("AdamUpdate", ADAM_INPUTS, ADAM_OUTPUTS, {})
    rng = np.random.default_rng(0)
    w, g, m, v = (np.asarray(rng.uniform(0.5, 2, shape), dtype) for _ in range(4))
    scale, penalty, shrink, rest1, beta2, rest2, rate, root, eps = c = np.arange(1, 10) / 16
    model = op.model({"weight": w, "gradient": g, "exp_avg": m, "exp_avg_sq": v, "coefficients": c}, dtype=dtype)
    got = make_session(model, 2).run(None, dict(zip(ADAM_INPUTS, (w, g, m, v, c), strict=True)))
    w, g, m, v = (a.astype(np.float64) for a in (w, g, m, v))
    g = g * scale + penalty * w
    m = m + rest1 * (g - m)
    v = beta2 * v + rest2 * g**2
    for output, other in zip(got, (w * shrink - rate * m / (np.sqrt(v) / root + eps), m, v), strict=True):
        assert (output.dtype, output.shape) == (dtype, other.shape)
        assert np.abs(output - other).max(initial=0) <= BOUNDS[dtype] * np.abs(other).max(initial=0)


SYNCHRONIZED = """<ir_version: 8, opset_import: ["" : 17, "bngrad" : 1]>
g (T[N,3,S] dY, T[N,3,S] Z, T[N,3,S] X, P[3] scale, P[3] bias, P[3] running_mean, P[3] running_var)
    => (T[N,3,S] Y, P[3] new_mean, P[3] new_var, T[N,3,S] dX, P[3] dscale, P[3] dbias, T[N,3,S] of_relu,
        P[3] loss) {
    axes = Constant<value = int64[2] {0, 2}>()
    moments = bngrad.BatchNormalizationMoments(X, axes)
    all_moments = bngrad.AllGather<key = "bn/moments">(moments)
    new_mean, new_var, mean, inv_std, count = bngrad.BatchNormalizationMergeMoments
        <epsilon = 0.001, momentum = 0.9, unbiased_running_var = 1>(all_moments, running_mean, running_var)
    Y = bngrad.BatchNormalizationApply(X, scale, bias, mean, inv_std, axes)
    sums, dscale, dbias = bngrad.BatchNormalizationGradSums(dY, X, scale, mean, inv_std, axes)
    all_sums = bngrad.AllGather<key = "bn/sums">(sums)
    dX = bngrad.BatchNormalizationGradApply(dY, X, scale, mean, inv_std, all_sums, count, axes)
    relu_sums = bngrad.BatchNormalizationReluGradSums(dY, Z, X, scale, mean, inv_std, axes)
    all_relu_sums = bngrad.AllGather<key = "relu/sums">(relu_sums)
    of_relu = bngrad.BatchNormalizationReluGradApply
        (dY, Z, X, scale, mean, inv_std, all_relu_sums, count, axes)
    loss = bngrad.AllReduce<key = "loss">(bias)
}"""
"""A batch norm of a batch that is divided among ranks, forward and backward."""


@pytest.mark.parametrize("name", ["float", "double", "float16"])
def test_synchronized_on_one_rank(name):
    data, parameter = NAMES[name], DOUBLE if name == "double" else FLOAT
    feeds = make_feeds(training_op(), [4, 3, 5], [0, 2], (data, parameter, parameter))
    feeds |= make_feeds(relu_grad_op(), [4, 3, 5], [0, 2], (data, parameter, parameter), seed=1)
    del feeds["mean"], feeds["inv_std"]
    feeds["dY"] = feeds.pop("dZ")
    parameter_type = "double" if name == "double" else "float"
    model = onnx.parser.parse_model(SYNCHRONIZED.replace("T[", f"{name}[").replace("P[", f"{parameter_type}["))
    session = make_session(model.SerializeToString(), 2)
    names = [o.name for o in session.get_outputs()]
    got = dict(zip(names, session.run(None, {n: v for n, v in feeds.items() if n != "axes"}), strict=True))

    epsilon = float(np.float32(1e-3))
    y, *running, mean, inv_std = expected_training(feeds, (0, 2), epsilon, 0.9, 1)
    of_grad = {**feeds, "mean": mean, "inv_std": inv_std}
    expected = [y, *running, *expected_grad(of_grad, (0, 2), True)]
    of_relu, *_ = expected_relu_grad({**of_grad, "dZ": feeds["dY"]}, (0, 2), True)
    for output, want in zip(names, [*expected, of_relu, float64(feeds["bias"])], strict=True):
        dtype = data if output in ("Y", "dX", "of_relu") else parameter
        assert (got[output].dtype, got[output].shape) == (dtype, want.shape), output
        assert np.abs(got[output] - want).max() <= BOUNDS[dtype] * max(np.abs(want).max(), 1), output


# What shape inference knows must not change results, and nothing wrong may be inferred.


@pytest.mark.parametrize("dims", ["symbolic", "free", "unknown"])
@pytest.mark.parametrize("axes_constant", [True, False])
@every_op
def test_shapes_known_or_not(op, axes_constant, dims):
    feeds = make_feeds(op, [4, 3, 5], [0, 2])
    expected = op.run(feeds)
    for actual, e in zip(op.run(feeds, dims=dims, axes_constant=axes_constant), expected, strict=True):
        np.testing.assert_array_equal(actual, e)


def test_inferred_shapes():
    for op, shapes in (
        (grad_op(outputs=["dX"]), [["X_0", "X_1", "X_2"]]),
        (relu_grad_op(outputs=["dX"]), [["X_0", "X_1", "X_2"]]),
        (grad_grad_op(outputs=["d_dY"]), [["X_0", "X_1", "X_2"]]),
        (training_op(["Y"]), [["X_0", "X_1", "X_2"]]),
    ):
        session = make_session(op.model(make_feeds(op, [4, 3, 5], [0, 2])))
        assert [output.shape for output in session.get_outputs()] == shapes


# ONNX Runtime hands on whatever addresses it is given, and maps files of weights into memory.


def misaligned(array):
    """The same array at an odd address."""
    return np.frombuffer(b"\0" + array.tobytes(), np.uint8)[1:].view(array.dtype).reshape(array.shape)


@every_op
@pytest.mark.parametrize("name", ["float", "double", "float16"])
def test_misaligned_inputs(op, name):
    feeds = make_feeds(op, [4, 3, 5, 7], [0, 2], (NAMES[name],) * 3)
    moved = {n: misaligned(array) for n, array in feeds.items()}
    for output, other in zip(op.run(moved, axes_constant=False), op.run(feeds), strict=True):
        np.testing.assert_array_equal(output, other)


def test_weights_at_odd_offsets_of_a_file(tmp_path):
    op = grad_op()
    feeds = make_feeds(op, [4, 3, 5, 7], [0, 2])
    model, blob = onnx.load_model_from_string(op.model(feeds)), b"\0"
    for name in ("X", "scale"):
        tensor = onnx.TensorProto(name=name, data_type=1, dims=feeds[name].shape, data_location=1)
        place = {"location": "weights.bin", "offset": str(len(blob)), "length": str(feeds[name].nbytes)}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=value)
        blob += feeds[name].tobytes() + b"\0"
        model.graph.initializer.append(tensor)
        model.graph.input.remove(next(i for i in model.graph.input if i.name == name))
    (tmp_path / "weights.bin").write_bytes(blob)
    onnx.save_model(model, tmp_path / "model.onnx")
    session = make_session(str(tmp_path / "model.onnx"))
    actual = session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})
    for output, other in zip(actual, op.run(feeds), strict=True):
        np.testing.assert_array_equal(output, other)


# Refusals: the message names op and node, what came and what was expected.


def refuse(op, feeds, *expected, **options):
    with pytest.raises(Exception) as info:  # noqa: PT011 - the classes differ between releases
        op.run(feeds, **options)
    message = str(info.value)
    for text in (op.op, *expected):
        assert text in message
    return message


@every_op
@pytest.mark.parametrize("wrong", [[4], [1], [3, 1], [], [0]], ids=str)
def test_parameter_of_wrong_shape(op, wrong):
    for name in op.inputs:
        if name in DATA or name == "axes":
            continue
        feeds = make_feeds(op, [2, 3, 4], [0, 2])
        feeds[name] = np.ones(wrong, np.float32)
        got = str(wrong).replace(" ", "")
        refuse(
            op,
            feeds,
            "node 'the_node'",
            f"{name} has shape {got}; expected [3]",
            "[2,3,4] of X without axes [0,2]",
        )


@pytest.mark.parametrize("wrong", [[2, 3, 5], [2, 3], [2, 3, 4, 1], [24]], ids=str)
def test_data_of_wrong_shape(wrong):
    got = str(wrong).replace(" ", "")
    for op in (grad_op(), relu_grad_op(), grad_grad_op()):
        for name in set(op.inputs) & {"dY", "dZ", "Z", "ddX"}:
            feeds = make_feeds(op, [2, 3, 4], [0, 2]) | {name: np.ones(wrong, np.float32)}
            refuse(op, feeds, "node 'the_node'", f"{name} has shape {got}; expected [2,3,4], the shape of X")


@every_op
@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ([0, 3], "axis 3 is out of range for X of shape [2,3,4]; expected -3 to 2"),
        ([-4], "axis -4 is out of range for X of shape [2,3,4]; expected -3 to 2"),
        ([2**62], f"{2**62} is out of range"),
        ([0, 2, 0], "axes [0,2,0] contains dimension 0 of X of shape [2,3,4] twice"),
        ([2, -1], "axes [2,-1] contains dimension 2 of X of shape [2,3,4] twice"),
        ([0] * 100_000, "axes has 100000 values; expected at most 8"),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.parametrize("constant", [True, False], ids=["initializer", "input"])
def test_bad_axes(op, axes, expected, constant):
    feeds = make_feeds(op, [2, 3, 4], [0, 2]) | {"axes": np.array(axes, np.int64)}
    refuse(op, feeds, "node 'the_node'", expected, axes_constant=constant)


@every_op
@pytest.mark.parametrize("axes", [np.array(0), np.array([[0, 2]])], ids=["scalar", "matrix"])
def test_axes_of_wrong_rank(op, axes):
    feeds = make_feeds(op, [2, 3, 4], [0, 2]) | {"axes": axes.astype(np.int64)}
    refuse(op, feeds, "node 'the_node'", "axes has shape", "expected a 1-D tensor", axes_constant=False)


@every_op
@pytest.mark.parametrize("shape", [[], [1] * 9], ids=["rank 0", "rank 9"])
def test_bad_rank(op, shape):
    feeds = make_feeds(op, shape, [])
    refuse(op, feeds, "node 'the_node'", f"has rank {len(shape)}; expected 1 to 8")


@pytest.mark.parametrize("value", [None, 2, -1, 1.0, "1", [1]], ids=repr)
def test_bad_training_mode(value):
    for right in (grad_op(), relu_grad_op(), grad_grad_op()):
        op = right._replace(attributes={} if value is None else {"training_mode": value})
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


# Where no op takes the types of a node, ONNX Runtime 1.17 casts those that are float16 to float.
ORT_CASTS_FLOAT16 = onnxruntime.__version__.startswith("1.17.")


@pytest.mark.parametrize("data", NAMES)
def test_mixed_types(data):
    """Data of two types, and parameters that are neither of X's type nor float, or of two types."""
    dtype = NAMES[data]
    for op in (grad_op(), relu_grad_op(), grad_grad_op(), training_op()):
        right = make_feeds(op, [2, 3], [0], (dtype, dtype, dtype))
        for name, array in right.items():
            if name in ("X", "axes"):
                continue
            for wrong in {FLOAT, DOUBLE, FLOAT16, BFLOAT16} - {dtype}:
                group = [n for n in right if n not in DATA and (n in SCALES) == (name in SCALES) and n != "axes"]
                if wrong == FLOAT and name not in DATA and len(group) == 1:
                    continue
                feeds = right | {name: to_dtype(to_numpy(array), wrong)}
                try:
                    outputs = op.run(feeds)
                except Exception as error:  # noqa: BLE001 - the classes differ between releases
                    assert op.op in str(error)  # noqa: PT017
                    continue
                assert ORT_CASTS_FLOAT16
                assert FLOAT16 in (dtype, wrong)
                for output, other in zip(outputs, op.run(right), strict=True):
                    np.testing.assert_allclose(output, other, rtol=1e-2, atol=1e-2)


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
    assert f"BNGRAD_ISA={isa} is unknown; expected one of " in done.stderr


def test_two_registrations():
    """In one session and, separately, in two: the domain is shared, ONNX Runtime says what it thinks of twice."""
    feeds = make_feeds(grad_op(), [2, 3], [0])
    first = make_session(grad_op().model(feeds))
    second = make_session(grad_op().model(feeds))
    inputs = {name: value for name, value in feeds.items() if name != "axes"}
    for a, b in zip(first.run(None, inputs), second.run(None, inputs), strict=True):
        np.testing.assert_array_equal(a, b)
