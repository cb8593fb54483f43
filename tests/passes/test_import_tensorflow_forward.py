"""FusedBatchNorm, V2, V3 as bngrad's ops: the numbers, and those that a gradient reads."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bngrad.graph.nodes import all_nodes
from bngrad.passes.imports.tensorflow.fused_batch_norm import ImportTensorflowPass
from dialects import rewritten, run, worst_error
from ort_values import DTYPES, IMPLEMENTATIONS
from pairwise import pairwise
from pass_models import find, ops
from tensorflow_formulas import (
    FORMATS,
    FORWARD_OUTPUTS,
    FORWARDS,
    MODES,
    TINY,
    attributes_with_defaults,
    axes_of_format,
    compare,
    converted,
    forward,
    forward_inputs,
    gradient,
    shape_of,
)

NOT_SAVED = FORWARD_OUTPUTS[:4]
"""The outputs without the variance that is saved, which costs nodes of its own."""


def check_forward(inputs, outputs=None, *, op_type="FusedBatchNormV3", implementation="function", **attributes):
    got = run(converted(op_type, inputs, outputs, **attributes), inputs, implementation)
    want = forward(*inputs.values(), **attributes_with_defaults(attributes))
    compare(got, want, inputs["x"].dtype)
    return got


@pairwise(
    dtype=["float", "float16", "bfloat16"],
    data_format=FORMATS,
    mode=list(MODES),
    outputs={"saved-variance": FORWARD_OUTPUTS, "no-saved-variance": NOT_SAVED},
    implementation=IMPLEMENTATIONS,
)
def test_every_format_type_and_mode(dtype, data_format, mode, outputs, implementation, rng):
    inputs = forward_inputs(rng, shape_of(data_format), data_format, dtype)
    attributes = {"data_format": data_format, "is_training": MODES[mode], "epsilon": TINY}
    got = check_forward(inputs, outputs, implementation=implementation, **attributes, exponential_avg_factor=0.25)
    assert got["y"].dtype == DTYPES[dtype]
    assert {got[name].dtype for name in outputs[1:]} == {DTYPES["float"]}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op_type", FORWARDS)
def test_every_version(op_type, mode, rng):
    inputs = forward_inputs(rng, (2, 4, 5, 3), "NHWC")
    got = check_forward(inputs, op_type=op_type, is_training=MODES[mode])
    assert len(got) == FORWARDS[op_type]


@pytest.mark.parametrize("outputs", [FORWARD_OUTPUTS, NOT_SAVED], ids=["saved-variance", "no-saved-variance"])
@pytest.mark.parametrize("factor", [0.0, 1e-9, 0.001, 0.01, 0.25, 1.0])
def test_the_running_averages(factor, outputs, rng):
    inputs = forward_inputs(rng, (2, 4, 5, 3), "NHWC")
    check_forward(inputs, outputs, exponential_avg_factor=factor)


@pytest.mark.parametrize("outputs", [FORWARD_OUTPUTS, NOT_SAVED], ids=["saved-variance", "no-saved-variance"])
@pytest.mark.parametrize("unread", [np.zeros(0, np.float32), np.full(3, np.nan, np.float32)], ids=["empty", "nan"])
def test_averages_that_get_no_weight_are_not_read(unread, outputs, rng):
    inputs = forward_inputs(rng, (2, 4, 5, 3), "NHWC")
    feeds = inputs | {"mean": unread, "variance": unread}
    got = run(converted("FusedBatchNormV3", feeds, outputs), feeds)
    compare(got, forward(*inputs.values(), **attributes_with_defaults({})), DTYPES["float"])


def test_the_defaults_of_the_attributes(rng):
    """NHWC, training, an epsilon of 1e-4, which shows where x is small, and no weight for the old averages."""
    inputs = forward_inputs(rng, (2, 4, 5, 3), "NHWC")
    inputs["x"] *= np.float32(0.01)
    check_forward(inputs)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("data_format", "rank"), [("NDHWC", 4), ("NCDHW", 4), ("NHWC", 5), ("NCHW", 5)])
def test_a_rank_that_the_format_does_not_name(data_format, rank, mode, rng):
    inputs = forward_inputs(rng, shape_of(data_format, rank), data_format)
    check_forward(inputs, data_format=data_format, is_training=MODES[mode])


@pytest.mark.parametrize("data_format", FORMATS)
def test_no_digits_of_the_frozen_are_lost_to_a_large_mean(data_format, rng):
    inputs = forward_inputs(rng, shape_of(data_format), data_format, offset=1000.0)
    check_forward(inputs, data_format=data_format, is_training=0)


@pytest.mark.parametrize("outputs", [FORWARD_OUTPUTS, NOT_SAVED], ids=["saved-variance", "no-saved-variance"])
def test_a_variance_far_below_epsilon_keeps_its_digits(outputs, rng):
    """Made of inv_std it would have none: 1 / inv_std^2 - epsilon."""
    inputs = forward_inputs(rng, (2, 4, 5, 3), "NHWC")
    inputs["x"] *= np.float32(1e-4)
    got = check_forward(inputs, outputs, epsilon=0.1)
    assert got["batch_variance"].max() < 1e-7


@pytest.mark.parametrize("outputs", [FORWARD_OUTPUTS, NOT_SAVED], ids=["saved-variance", "no-saved-variance"])
def test_one_element_a_channel(outputs, rng):
    """Bessel's correction is by max(M - 1, 1): the variance is 0, not NaN."""
    inputs = forward_inputs(rng, (1, 1, 1, 3), "NHWC")
    got = check_forward(inputs, outputs)
    np.testing.assert_array_equal(got["batch_variance"], np.zeros(3))
    np.testing.assert_array_equal(got["y"].reshape(3), inputs["offset"])


@pytest.mark.parametrize("outputs", [FORWARD_OUTPUTS, NOT_SAVED], ids=["saved-variance", "no-saved-variance"])
def test_no_elements(outputs, rng):
    """A batch of nothing has no statistics, and TensorFlow's averages are NaN too."""
    inputs = forward_inputs(rng, (0, 4, 5, 3), "NHWC")
    got = run(converted("FusedBatchNormV3", inputs, outputs), inputs)
    assert got["y"].shape == (0, 4, 5, 3)
    for name in ("batch_mean", "batch_variance"):
        assert np.isnan(got[name]).all()
    frozen = run(converted("FusedBatchNormV3", inputs, outputs, is_training=0), inputs)
    np.testing.assert_array_equal(frozen["batch_mean"], inputs["mean"])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("data_format", FORMATS)
def test_a_nan_stays_in_its_channel(data_format, mode, rng):
    inputs = forward_inputs(rng, shape_of(data_format), data_format)
    axes = axes_of_format(data_format, inputs["x"].ndim)
    inputs["x"][tuple(0 if d in axes else 1 for d in range(inputs["x"].ndim))] = np.nan
    got = run(converted("FusedBatchNormV3", inputs, data_format=data_format, is_training=MODES[mode]), inputs)
    assert np.isfinite(got["y"]).all(axis=axes).tolist() == [True, False, True]
    assert np.isfinite(got["batch_mean"]).tolist() == [True, mode == "frozen", True]


def test_frozen_averages_are_the_inputs_to_the_bit(rng):
    inputs = forward_inputs(rng, (2, 4, 5, 3), "NHWC")
    got = check_forward(inputs, is_training=0, exponential_avg_factor=0.25)
    for name, given_name in (("batch_mean", "mean"), ("batch_variance", "variance")):
        np.testing.assert_array_equal(got[name], inputs[given_name])
        np.testing.assert_array_equal(got[name.replace("batch_mean", "reserve_space_1")], got[name])


@pytest.mark.parametrize("mode", MODES)
def test_reserve_space_3_is_empty(mode, rng):
    inputs = forward_inputs(rng, (2, 4, 5, 3), "NHWC")
    got = check_forward(inputs, is_training=MODES[mode])
    assert (got["reserve_space_3"].shape, got["reserve_space_3"].dtype) == ((0,), np.float32)


@settings(max_examples=12, deadline=None)
@given(
    extents=st.tuples(*[st.integers(1, 5)] * 3),
    batch=st.integers(1, 4),
    channels=st.integers(1, 5),
    rank=st.sampled_from([4, 5]),
    data_format=st.sampled_from(FORMATS),
    dtype=st.sampled_from(["float", "float16", "bfloat16"]),
    op_type=st.sampled_from(sorted(FORWARDS)),
    is_training=st.sampled_from([0, 1]),
    factor=st.sampled_from([0.0, 0.1, 1.0]),
    saved_variance=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_shape(
    extents, batch, channels, rank, data_format, dtype, op_type, is_training, factor, saved_variance, seed
):
    shape = shape_of(data_format, rank, channels, batch, extents)
    inputs = forward_inputs(np.random.default_rng(seed), shape, data_format, dtype)
    # An epsilon of 1: few elements may have next to no variance.
    attributes = {"data_format": data_format, "is_training": is_training, "exponential_avg_factor": factor}
    outputs = FORWARD_OUTPUTS[:5] if saved_variance else NOT_SAVED
    got = run(converted(op_type, inputs, outputs, epsilon=1.0, **attributes), inputs)
    for name, want in forward(*inputs.values(), epsilon=1.0, **attributes).items():
        if name in got:
            bound = {"float": 5e-6, "float16": 1e-3, "bfloat16": 1e-2}[dtype if name == "y" else "float"]
            np.testing.assert_allclose(got[name].astype(np.float64), want, rtol=bound, atol=bound, err_msg=name)


# ---- with a gradient ----

CHAIN = """
<ir_version: 8, opset_import: ["" : 17, "tf" : 1]>
g (float[2,4,5,3] dy, float[2,4,5,3] x, float[3] scale, float[3] offset, float[3] mean, float[3] variance)
    => (float[2,4,5,3] y, float[2,4,5,3] dx, float[3] dscale, float[3] doffset OUTPUTS) {
    [forward] y, batch_mean, batch_variance, r1, r2, r3 =
        tf.FusedBatchNormV3<epsilon = 0.001, is_training = MODE>(x, scale, offset, mean, variance)
    [backward] dx, dscale, doffset, r4, r5 =
        tf.FusedBatchNormGradV3<epsilon = EPSILON, is_training = MODE>(dy, x, scale, R1, R2, r3)
}"""


def chain(outputs="", mode=1, epsilon=0.001, saved=("r1", "r2")):
    text = CHAIN.replace("OUTPUTS", outputs).replace("MODE", str(mode)).replace("EPSILON", str(epsilon))
    text = text.replace("R1", saved[0]).replace("R2", saved[1])
    return rewritten(ir.from_proto(onnx.parser.parse_model(text)), ImportTensorflowPass())


def chain_feeds(rng, offset=0.0):
    feeds = forward_inputs(rng, (2, 4, 5, 3), "NHWC", offset=offset)
    return feeds | {"dy": rng.standard_normal((2, 4, 5, 3)).astype(np.float32)}


def check_chain(model, feeds, want_of_statistics=None, epsilon=0.001):
    got = run(model, feeds)
    mean, variance = want_of_statistics or (
        feeds["x"].mean((0, 1, 2), np.float64),
        feeds["x"].var((0, 1, 2), np.float64),
    )
    want = gradient(
        feeds["dy"],
        feeds["x"],
        feeds["scale"],
        mean,
        variance,
        epsilon=epsilon,
        is_training=want_of_statistics is None,
        data_format="NHWC",
    )
    for name, value in zip(("dx", "dscale", "doffset"), want.values(), strict=True):
        assert worst_error(got[name], value) <= 1e-6, name
    return got


def test_a_gradient_takes_what_its_forward_saved(rng):
    """No glue: one op for each node, and the zeros that the forward takes for averages that it does not read."""
    model = chain()
    forward_node, backward = (find(model, f"BatchNormalization{op}") for op in ("Training", "Grad"))
    assert list(backward.inputs[3:5]) == list(forward_node.outputs[3:5])
    assert sorted(set(ops(model))) == [
        "Constant",
        "ConstantOfShape",
        "Shape",
        "bngrad.BatchNormalizationGrad",
        "bngrad.BatchNormalizationTraining",
    ]
    assert ops(model).count("Constant") == 1
    check_chain(model, chain_feeds(rng))


def test_a_user_of_the_saved_variance_does_not_take_the_digits_of_the_gradient(rng):
    model = chain(", float[3] r1, float[3] r2, float[3] batch_variance")
    forward_node, backward = (find(model, f"BatchNormalization{op}") for op in ("Training", "Grad"))
    assert backward.inputs[4] is forward_node.outputs[4]
    feeds = chain_feeds(rng)
    got = check_chain(model, feeds)
    assert worst_error(got["r2"], feeds["x"].var((0, 1, 2), np.float64)) <= 1e-6
    assert worst_error(got["batch_variance"], feeds["x"].var((0, 1, 2), np.float64, ddof=1)) <= 1e-6


def test_a_gradient_of_another_epsilon_takes_the_variance(rng):
    model = chain(epsilon=0.5)
    assert ops(model).count("Reciprocal") == 1
    check_chain(model, chain_feeds(rng), epsilon=0.5)


def test_a_frozen_pair(rng):
    model = chain(mode=0, saved=("mean", "variance"))
    feeds = chain_feeds(rng, offset=1000.0)
    check_chain(model, feeds, (feeds["mean"], feeds["variance"]))


def test_a_frozen_gradient_may_take_the_reserve_outputs(rng):
    feeds = chain_feeds(rng)
    check_chain(chain(mode=0), feeds, (feeds["mean"], feeds["variance"]))


def test_the_gradient_of_the_given_statistics_at_a_large_mean(rng):
    """Float statistics of data around 1000 are rounded; of those that were saved the gradient is exact."""
    model = chain(", float[3] r1, float[3] r2")
    feeds = chain_feeds(rng, offset=1000.0)
    got = run(model, feeds)
    arrays = (feeds["dy"], feeds["x"], feeds["scale"], got["r1"], got["r2"])
    want = gradient(*arrays, epsilon=0.001, is_training=True, data_format="NHWC")
    for name, value in zip(("dx", "dscale", "doffset"), want.values(), strict=True):
        assert worst_error(got[name], value) <= 1e-6, name


def test_a_gradient_in_a_branch_takes_what_its_forward_outside_saved(rng):
    text = """
    <ir_version: 8, opset_import: ["" : 17, "tf" : 1]>
    g (bool c, float[2,4,5,3] dy, float[2,4,5,3] x, float[3] scale, float[3] offset, float[3] mean)
        => (float[2,4,5,3] y, float[2,4,5,3] dx) {
        [forward] y, a, b, r1, r2, r3 = tf.FusedBatchNormV3(x, scale, offset, mean, mean)
        dx = If(c) <
            then_branch = t () => (float[2,4,5,3] u) {
                [backward] u, ds, do, r4, r5 = tf.FusedBatchNormGradV3(dy, x, scale, r1, r2, r3) },
            else_branch = e () => (float[2,4,5,3] v) { v = Identity(dy) }>
    }"""
    model = rewritten(ir.from_proto(onnx.parser.parse_model(text)), ImportTensorflowPass())
    assert not [node for node in all_nodes(model) if node.op_type == "Sqrt"]
    feeds = chain_feeds(rng)
    got = run(model, feeds | {"c": np.array(True)})
    statistics = (feeds["x"].mean((0, 1, 2), np.float64), feeds["x"].var((0, 1, 2), np.float64))
    want = gradient(
        feeds["dy"], feeds["x"], feeds["scale"], *statistics, epsilon=1e-4, is_training=True, data_format="NHWC"
    )
    assert worst_error(got["dx"], want["x_backprop"]) <= 1e-6
