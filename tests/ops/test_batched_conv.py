"""BatchedConv and BatchedConvTranspose in ONNX Runtime, with the native kernels: values and refusals."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import bngrad
from bngrad.opset.batched_conv import CONV, TRANSPOSE
from bngrad.validation.training_ops.convolution import conv, conv_transpose
from wrong_windows import WRONG_WINDOWS

REFERENCES = {CONV: conv, TRANSPOSE: conv_transpose}
CASES = {
    "2x2": ((9, 20, 2, 2), 30, (3, 3), {"pads": [1, 1, 1, 1]}),
    "stride 2": ((5, 7, 4, 5), 6, (3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    "pointwise, stride 2": ((5, 7, 4, 4), 6, (1, 1), {"strides": [2, 2]}),
    "one pixel, few images": ((3, 5, 1, 1), 4, (3, 3), {"pads": [1, 1, 1, 1]}),
    "one pixel, many images": ((40, 5, 1, 1), 4, (1, 1), {}),
    "uneven pads, dilation": (
        (4, 3, 7, 9),
        5,
        (2, 3),
        {"pads": [0, 2, 1, 3], "dilations": [2, 3]},
    ),
    "stride 3": ((4, 3, 8, 9), 5, (2, 3), {"pads": [1, 0, 0, 2], "strides": [1, 3]}),
    "several parts": ((70, 3, 7, 7), 4, (3, 3), {"pads": [1, 1, 1, 1]}),
    "an image beyond a part": ((2, 2, 30, 31), 3, (3, 3), {"pads": [1, 1, 1, 1]}),
    "one image": ((1, 6, 3, 3), 5, (2, 2), {}),
    "1-d": ((6, 4, 9), 5, (3,), {"pads": [1, 0], "strides": [2]}),
    "an empty batch": ((0, 4, 3, 3), 5, (3, 3), {"pads": [1, 1, 1, 1]}),
}


def attributes_of(op, kernel, changed):
    rank = len(kernel)
    values = {"kernel_shape": list(kernel), "dilations": [1] * rank, "pads": [0, 0] * rank, "strides": [1] * rank}
    return values | ({"output_padding": [0] * rank} if op == TRANSPOSE else {}) | changed


def session_of(op, rank, attributes, *, device="", threads=2):
    node = helper.make_node(op, ["X", "W"], ["Y"], "conv", domain="bngrad", **attributes)
    info = helper.make_tensor_value_info
    inputs = [info(name, TensorProto.FLOAT, [None] * rank) for name in ("X", "W")]
    graph = helper.make_graph([node], "test", inputs, [info("Y", TensorProto.FLOAT, None)])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("bngrad", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    if device:
        options.add_session_config_entry("bngrad.device", device)
    bngrad.register(options)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def arrays(rng, op, x, m, kernel):
    channels = (m, x[1]) if op == CONV else (x[1], m)
    shapes = {"X": x, "W": (*channels, *kernel)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("op", REFERENCES)
@pytest.mark.parametrize("case", CASES)
def test_values(case, op, rng):
    x, m, kernel, changed = CASES[case]
    attributes = attributes_of(op, kernel, changed)
    if op == TRANSPOSE and "strides" in changed:
        attributes["output_padding"] = [stride - 1 for stride in changed["strides"]]
    feeds = arrays(rng, op, x, m, kernel)
    (result,) = session_of(op, len(x), attributes).run(None, feeds)
    expected = REFERENCES[op](*(array.astype(np.float64) for array in feeds.values()), **attributes)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-6 * (1 + np.max(np.abs(expected), initial=0)))


def test_no_window(rng):
    feeds = arrays(rng, CONV, (2, 3, 2, 9), 4, (3, 3))
    (result,) = session_of(CONV, 4, attributes_of(CONV, (3, 3), {})).run(None, feeds)
    assert result.shape == (2, 4, 0, 7)


@pytest.mark.parametrize("op", REFERENCES)
def test_runs_at_the_same_time(op, rng):
    session = session_of(op, 4, attributes_of(op, (3, 3), {"pads": [1, 1, 1, 1]}))
    cases = [arrays(rng, op, (images, 6, 3, 3), 5, (3, 3)) for images in range(1, 41)]
    expected = [session.run(None, feeds)[0] for feeds in cases]
    with ThreadPoolExecutor(4) as pool:
        for result, alone in zip(
            pool.map(lambda feeds: session.run(None, feeds)[0], cases), expected, strict=True
        ):
            np.testing.assert_array_equal(result, alone)


@pytest.mark.parametrize("op", REFERENCES)
@pytest.mark.parametrize(
    ("changes", "message"),
    WRONG_WINDOWS,
)
def test_attributes_that_do_not_fit(op, changes, message):
    with pytest.raises(Exception, match=f"bngrad.{op}, node 'conv': .*{message}"):
        session_of(op, 4, attributes_of(op, (3, 3), {}) | changes)


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ([0], r"attribute output_padding is \[0\]; expected 2 values of 0 or more"),
        ([0, 2], r"attribute output_padding is \[0,2\]; expected less than strides, which are \[2,2\]"),
    ],
)
def test_an_output_padding_that_does_not_fit(added, message):
    with pytest.raises(Exception, match=message):
        session_of(TRANSPOSE, 4, attributes_of(TRANSPOSE, (3, 3), {"strides": [2, 2], "output_padding": added}))


@pytest.mark.parametrize(
    ("op", "x", "w", "message"),
    [
        (
            CONV,
            (2, 3, 0, 8),
            (4, 3, 3, 3),
            r"X has shape \[2,3,0,8\]; expected \[N, C\], with a C of 1",
        ),
        (
            CONV,
            (2, 0, 7, 8),
            (4, 0, 3, 3),
            r"X has shape \[2,0,7,8\]; expected \[N, C\], with a C of 1",
        ),
        (
            CONV,
            (2, 3, 7, 8),
            (4, 2, 3, 3),
            r"W has shape \[4,2,3,3\]; expected \[M, C\] and kernel_shape \[3,3\]",
        ),
        (CONV, (2, 3, 7, 8), (0, 3, 3, 3), r"W has shape \[0,3,3,3\]; expected \[M, C\]"),
        (CONV, (2, 3, 7, 8), (4, 3, 3, 2), r"W has shape \[4,3,3,2\]; expected \[M, C\]"),
        (
            TRANSPOSE,
            (2, 3, 7, 8),
            (4, 3, 3, 3),
            r"W has shape \[4,3,3,3\]; expected \[C, M\] and kernel_shape",
        ),
        (TRANSPOSE, (2, 3, 7, 8), (3, 0, 3, 3), r"W has shape \[3,0,3,3\]; expected \[C, M\]"),
    ],
)
def test_shapes_that_do_not_fit(op, x, w, message):
    session = session_of(op, 4, attributes_of(op, (3, 3), {}))
    with pytest.raises(Exception, match=message):
        session.run(None, {"X": np.ones(x, np.float32), "W": np.ones(w, np.float32)})


def test_padding_that_leaves_nothing():
    session = session_of(TRANSPOSE, 4, attributes_of(TRANSPOSE, (3, 3), {"pads": [0, 2, 0, 2]}))
    feeds = {"X": np.ones((2, 3, 1, 2), np.float32), "W": np.ones((3, 4, 3, 3), np.float32)}
    with pytest.raises(Exception, match=r"pads are \[0,2,0,2\]; expected a Y with 1 or more elements in dim"):
        session.run(None, feeds)


def test_a_dilation_that_needs_too_much_memory():
    """ONNX Runtime reports it."""
    attributes = attributes_of(TRANSPOSE, (2, 2), {"dilations": [2**31 - 1] * 2})
    feeds = {"X": np.ones((2, 1, 1, 1), np.float32), "W": np.ones((1, 1, 2, 2), np.float32)}
    with pytest.raises(Exception, match=f"bngrad.{TRANSPOSE}, node 'conv'"):
        session_of(TRANSPOSE, 4, attributes).run(None, feeds)


@pytest.mark.parametrize("op", REFERENCES)
def test_a_session_on_a_gpu_has_no_kernel(op):
    """ONNX Runtime inlines the functions of a model there: its own kernels are on the GPU."""
    with pytest.raises(Exception, match=op):
        session_of(op, 4, attributes_of(op, (3, 3), {}), device="cuda")


@pytest.mark.parametrize("op", REFERENCES)
def test_the_schema_infers_shapes(op, rng):
    for x, m, kernel, changed in CASES.values():
        attributes = attributes_of(op, kernel, changed)
        feeds = arrays(rng, op, x, m, kernel)
        node = helper.make_node(op, ["X", "W"], ["Y"], domain="bngrad", **attributes)
        info = helper.make_tensor_value_info
        inputs = [info(name, TensorProto.FLOAT, array.shape) for name, array in feeds.items()]
        graph = helper.make_graph([node], "test", inputs, [info("Y", TensorProto.FLOAT, None)])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("bngrad", 1)])
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph.output[0]
        (result,) = session_of(op, len(x), attributes).run(None, feeds)
        assert [dim.dim_value for dim in inferred.type.tensor_type.shape.dim] == list(result.shape)
