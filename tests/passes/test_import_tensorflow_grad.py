"""FusedBatchNormGrad, V2, V3 as bngrad's ops: the numbers."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bngrad.passes.imports.tensorflow.fused_batch_norm import ImportTensorflowPass
from dialects import rewritten, run, worst_error
from ort_values import DTYPES, IMPLEMENTATIONS
from pairwise import pairwise
from tensorflow_formulas import (
    FORMATS,
    GRADIENT_OUTPUTS,
    GRADIENTS,
    MODES,
    TINY,
    axes_of_format,
    check_gradient,
    converted,
    gradient,
    gradient_inputs,
    shape_of,
)


@pairwise(
    dtype=["float", "float16", "bfloat16"], data_format=FORMATS, mode=list(MODES), implementation=IMPLEMENTATIONS
)
def test_every_format_type_and_mode(dtype, data_format, mode, implementation, rng):
    inputs = gradient_inputs(rng, shape_of(data_format), data_format, dtype)
    attributes = {"data_format": data_format, "is_training": MODES[mode], "epsilon": TINY}
    # The functions add in float, the ops in double.
    tolerance = 2e-6 if (implementation, dtype) == ("function", "float") else None
    got, _ = check_gradient(inputs, implementation=implementation, tolerance=tolerance, **attributes)
    assert {name: value.dtype for name, value in got.items()} == {
        "x_backprop": DTYPES[dtype],
        "scale_backprop": DTYPES["float"],
        "offset_backprop": DTYPES["float"],
    }


@pairwise(op_type=list(GRADIENTS), data_format=["NHWC", "NCHW"], mode=list(MODES))
def test_every_version(op_type, data_format, mode, rng):
    inputs = gradient_inputs(rng, shape_of(data_format), data_format, op_type=op_type)
    assert len(inputs) == GRADIENTS[op_type]
    check_gradient(inputs, op_type=op_type, data_format=data_format, is_training=MODES[mode])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("data_format", "rank"), [("NDHWC", 4), ("NCDHW", 4), ("NHWC", 5), ("NCHW", 5)])
def test_a_rank_that_the_format_does_not_name(data_format, rank, mode, rng):
    inputs = gradient_inputs(rng, shape_of(data_format, rank), data_format)
    check_gradient(inputs, data_format=data_format, is_training=MODES[mode])


def test_the_defaults_of_the_attributes(rng):
    """NHWC, training and an epsilon of 1e-4, which shows where the variance is small."""
    inputs = gradient_inputs(rng, (2, 4, 5, 3), "NHWC")
    inputs["reserve_space_2"] *= np.float32(TINY)
    check_gradient(inputs)


def test_double_is_ours_alone(rng):
    """TensorFlow's ops have no double; data in double gets gradients in double."""
    inputs = {name: np.float64(a) for name, a in gradient_inputs(rng, (2, 4, 5, 3), "NHWC", "double").items()}
    for implementation in IMPLEMENTATIONS:
        check_gradient(inputs, implementation=implementation, tolerance=1e-14, epsilon=0.5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("data_format", FORMATS)
def test_no_digits_are_lost_to_a_large_mean(data_format, mode, rng):
    inputs = gradient_inputs(rng, shape_of(data_format), data_format, offset=1000.0)
    check_gradient(inputs, data_format=data_format, is_training=MODES[mode], epsilon=TINY)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(0, 4, 5, 3), (2, 0, 5, 3), (2, 4, 5, 0), (0, 2, 2, 2, 3)], ids=str)
def test_no_elements(shape, mode, rng):
    """Sums of nothing are 0, and x_backprop has the shape of x, of 5 dimensions too."""
    inputs = gradient_inputs(rng, shape, "NHWC")
    got = run(converted("FusedBatchNormGradV3", inputs, is_training=MODES[mode]), inputs)
    assert got["x_backprop"].shape == shape
    for name in ("scale_backprop", "offset_backprop"):
        np.testing.assert_array_equal(got[name], np.zeros(shape[-1], np.float32))


def test_one_element_a_channel(rng):
    """Of its own mean: dx = 0, dscale = 0, doffset = dy. Of other statistics the formulas hold as they are."""
    inputs = gradient_inputs(rng, (1, 1, 1, 3), "NHWC")
    check_gradient(inputs)
    inputs |= {"reserve_space_1": inputs["x"].reshape(3), "reserve_space_2": np.zeros(3, np.float32)}
    got = run(converted("FusedBatchNormGradV3", inputs), inputs)
    np.testing.assert_array_equal(got["x_backprop"], np.zeros((1, 1, 1, 3)))
    np.testing.assert_array_equal(got["scale_backprop"], np.zeros(3))
    np.testing.assert_array_equal(got["offset_backprop"], inputs["y_backprop"].reshape(3))


POISONS = {
    "nan-in-x": ("x", np.nan, {"offset_backprop"}),
    "inf-in-x": ("x", np.inf, {"offset_backprop"}),
    "nan-in-y_backprop": ("y_backprop", np.nan, set()),
    "inf-in-y_backprop": ("y_backprop", np.inf, set()),
    "no-deviation": ("reserve_space_2", -1e-4, {"offset_backprop"}),
    "a-negative-variance": ("reserve_space_2", -1.0, {"offset_backprop"}),
}


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize("poison", POISONS)
def test_what_is_not_finite_stays_in_its_channel(poison, data_format, rng):
    name, value, finite = POISONS[poison]
    inputs = gradient_inputs(rng, shape_of(data_format), data_format)
    axes = axes_of_format(data_format, inputs["x"].ndim)
    place = (1,) if inputs[name].ndim == 1 else tuple(0 if d in axes else 1 for d in range(inputs["x"].ndim))
    inputs[name][place] = value
    got = run(converted("FusedBatchNormGradV3", inputs, data_format=data_format), inputs)
    for output, array in got.items():
        by_channel = np.isfinite(array).all(axis=axes) if array.ndim > 1 else np.isfinite(array)
        assert by_channel.tolist() == [True, output in finite, True], output


def test_sums_of_half_are_float(rng):
    """Above 65504 x_backprop overflows, and the sums do not."""
    inputs = gradient_inputs(rng, (2, 4, 5, 3), "NHWC", "float16")
    inputs["y_backprop"][:] = 6e4
    inputs["scale"][:] = 10
    got, want = check_gradient(inputs | {"y_backprop": inputs["y_backprop"] / np.float16(100)}, is_training=0)
    got = run(converted("FusedBatchNormGradV3", inputs, is_training=0), inputs)
    assert np.isposinf(got["x_backprop"]).all()
    assert worst_error(got["offset_backprop"], np.full(3, 40 * np.float64(np.float16(6e4)))) < 1e-6
    assert want["offset_backprop"].max() < 65504


@pytest.mark.parametrize("op_type", GRADIENTS)
def test_the_outputs_that_nobody_needs_are_empty(op_type, rng):
    inputs = gradient_inputs(rng, (2, 4, 5, 3), "NHWC", op_type=op_type)
    got = run(converted(op_type, inputs, GRADIENT_OUTPUTS), inputs)
    for name in GRADIENT_OUTPUTS[3:]:
        assert (got[name].shape, got[name].dtype) == ((0,), np.float32)


@pytest.mark.parametrize("reserve", [np.float32(0), np.zeros(0, np.float32), np.full(7, np.nan, np.float32), None])
def test_reserve_space_3_is_not_read(reserve, rng):
    inputs = gradient_inputs(rng, (2, 4, 5, 3), "NHWC")
    check_gradient(inputs | {"reserve_space_3": reserve})


UNKNOWN_RANK = """
<ir_version: 8, opset_import: ["" : 17, "tf" : 1]>
g (float[K] flat_dy, float[K] flat_x, int64[R] to, float[3] scale, float[3] mean, float[3] variance)
    => (float[K] flat_dx, float[3] dscale, float[3] doffset) {
    all = Constant<value = int64[1] {-1}>()
    x = Reshape(flat_x, to)
    dy = Reshape(flat_dy, to)
    dx, dscale, doffset = tf.FusedBatchNormGradV3<data_format = "FORMAT", is_training = MODE>
        (dy, x, scale, mean, variance)
    flat_dx = Reshape(dx, all)
}"""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("data_format", FORMATS)
def test_a_rank_that_nobody_knows(data_format, mode, rng):
    text = UNKNOWN_RANK.replace("FORMAT", data_format).replace("MODE", str(MODES[mode]))
    model = rewritten(ir.from_proto(onnx.parser.parse_model(text)), ImportTensorflowPass())
    for rank, batch in ((4, 2), (5, 2), (4, 0)):
        shape = shape_of(data_format, rank, batch=batch)
        dy, x, scale, mean, variance, _ = gradient_inputs(rng, shape, data_format).values()
        feeds = {"flat_dy": dy.reshape(-1), "flat_x": x.reshape(-1), "to": np.array(shape, np.int64)}
        got = run(model, feeds | {"scale": scale, "mean": mean, "variance": variance})
        attributes = {"data_format": data_format, "is_training": MODES[mode], "epsilon": 1e-4}
        dx, dscale, doffset = gradient(dy, x, scale, mean, variance, **attributes).values()
        for name, want in (("flat_dx", dx.reshape(-1)), ("dscale", dscale), ("doffset", doffset)):
            assert worst_error(got[name], want) <= 1e-6


@settings(max_examples=12, deadline=None)
@given(
    extents=st.tuples(*[st.integers(1, 5)] * 3),
    batch=st.integers(1, 4),
    channels=st.integers(1, 5),
    rank=st.sampled_from([4, 5]),
    data_format=st.sampled_from(FORMATS),
    dtype=st.sampled_from(["float", "float16", "bfloat16"]),
    op_type=st.sampled_from(sorted(GRADIENTS)),
    is_training=st.sampled_from([0, 1]),
    epsilon=st.sampled_from([1e-4, 1e-3, 0.1]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_shape(extents, batch, channels, rank, data_format, dtype, op_type, is_training, epsilon, seed):
    shape = shape_of(data_format, rank, channels, batch, extents)
    inputs = gradient_inputs(np.random.default_rng(seed), shape, data_format, dtype, op_type=op_type)
    attributes = {"data_format": data_format, "is_training": is_training, "epsilon": epsilon}
    got = run(converted(op_type, inputs, **attributes), inputs)
    want = gradient(*list(inputs.values())[:5], **attributes)
    # Few elements may cancel, so the bound is on the terms, not on the sum.
    inv = 1 / np.sqrt(inputs["reserve_space_2"].min() + epsilon)
    scale = float(np.abs(inputs["y_backprop"]).max()) * max(float(np.abs(inputs["x"]).max()), 1.0)
    bound = 4e-6 * scale * inv * np.sqrt(np.prod(shape))
    ulp = {"float": 0, "float16": 5e-4, "bfloat16": 4e-3}[dtype]
    for name, value in want.items():
        rounding = ulp * np.abs(value).max() if name == "x_backprop" else 0
        np.testing.assert_allclose(got[name].astype(np.float64), value, rtol=0, atol=bound + rounding)
