"""DepthwiseConv and DepthwiseConvGrad in ONNX Runtime, with the native kernels: values and refusals.

depthwise_test.cc has random shapes on every instruction set.
"""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import bngrad
from bngrad.opset.depthwise import CONV, GRADS
from bngrad.validation.training_ops.convolution import conv, conv_grad
from wrong_windows import WRONG_WINDOWS

DTYPES = {np.float32: (TensorProto.FLOAT, 1e-6), np.float64: (TensorProto.DOUBLE, 1e-14)}
"""The type, and the largest error relative to the largest value."""
CASES = {
    "3x3": ((2, 20, 9, 17), 1, (3, 3), {"pads": [1, 1, 1, 1]}),
    "5x5, stride 2": ((2, 3, 14, 33), 1, (5, 5), {"pads": [2, 2, 2, 2], "strides": [2, 2]}),
    "even kernel, uneven pads": ((1, 3, 7, 8), 1, (2, 4), {"pads": [0, 1, 1, 3]}),
    "several for each channel": ((2, 3, 6, 16), 3, (3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 1]}),
    "dilation": ((1, 2, 15, 40), 2, (3, 2), {"dilations": [2, 5], "strides": [3, 4], "pads": [1, 2, 4, 5]}),
    "rows and columns unread": ((2, 2, 9, 10), 1, (1, 1), {"strides": [4, 5]}),
    "no window": ((2, 2, 2, 9), 1, (3, 3), {}),
    "one group": ((2, 1, 5, 6), 4, (3, 3), {}),
    "1-d": ((3, 2, 50), 1, (3,), {"pads": [1, 1]}),
    "1-d, stride": ((1, 3, 37), 2, (4,), {"pads": [3, 0], "strides": [3], "dilations": [2]}),
    "an empty batch": ((0, 2, 5, 5), 1, (3, 3), {}),
}


def session_of(nodes, inputs, outputs):
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(name, kind, [None] * rank) for name, (kind, rank) in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("bngrad", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    bngrad.register(options)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def depthwise_session(kind, rank, attributes, grad=GRADS[0], outputs=("Y", "dX", "dW")):
    nodes = [
        helper.make_node(CONV, ["X", "W"], ["Y"], "forward", domain="bngrad", **attributes),
        helper.make_node(grad, ["dY", "X", "W"], ["dX", "dW"], "backward", domain="bngrad", **attributes),
    ]
    kept = {name: kind for name in outputs if name}
    nodes[1].output[:] = [name if name in kept else "" for name in nodes[1].output]
    return session_of(nodes, dict.fromkeys(("X", "W", "dY"), (kind, rank)), kept)


def attributes_of(group, kernel, changed):
    rank = len(kernel)
    defaults = {"dilations": [1] * rank, "pads": [0, 0] * rank, "strides": [1] * rank}
    return {"group": group, "kernel_shape": list(kernel), **defaults, **changed}


def expected_of(feeds, attributes):
    wide = {name: array.astype(np.float64) for name, array in feeds.items()}
    x, w, dY = (wide[name] for name in ("X", "W", "dY"))
    return conv(x, w, **attributes), *conv_grad(dY, x, w, **attributes)[:2]


@pytest.mark.parametrize("dtype", DTYPES, ids=["float", "double"])
@pytest.mark.parametrize("case", CASES)
def test_values(case, dtype, rng):
    x, multiplier, kernel, changed = CASES[case]
    attributes = attributes_of(x[1], kernel, changed)
    kind, bound = DTYPES[dtype]
    feeds = {"X": x, "W": (x[1] * multiplier, 1, *kernel)}
    feeds = {name: rng.standard_normal(shape).astype(dtype) for name, shape in feeds.items()}
    if case == "no window":
        shape = (x[0], x[1] * multiplier, 0, 7)
        feeds["dY"] = np.zeros(shape, dtype)
        expected = np.zeros(shape), np.zeros(x), np.zeros(feeds["W"].shape)
    elif case == "an empty batch":
        feeds["dY"] = np.zeros((0, 2, 3, 3), dtype)
        expected = feeds["dY"], feeds["X"], np.zeros(feeds["W"].shape)
    else:
        y = conv(*(feeds[name].astype(np.float64) for name in ("X", "W")), **attributes)
        feeds["dY"] = rng.standard_normal(y.shape).astype(dtype)
        expected = expected_of(feeds, attributes)
    results = depthwise_session(kind, len(x), attributes).run(["Y", "dX", "dW"], feeds)
    for result, array in zip(results, expected, strict=True):
        assert result.dtype == dtype
        np.testing.assert_allclose(result, array, rtol=0, atol=bound * (1 + np.max(np.abs(array), initial=0)))


@pytest.mark.parametrize("outputs", [("Y", "dX"), ("Y", "dW")], ids=["no dW", "no dX"])
def test_an_output_that_is_omitted(outputs, rng):
    attributes = attributes_of(2, (3, 3), {"strides": [2, 1]})
    shapes = {"X": (2, 2, 7, 8), "W": (2, 1, 3, 3), "dY": (2, 2, 3, 6)}
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    whole = depthwise_session(TensorProto.FLOAT, 4, attributes)
    for grad in (GRADS[0], GRADS[-1]):
        results = depthwise_session(TensorProto.FLOAT, 4, attributes, grad, outputs).run(outputs, feeds)
        for result, other in zip(results, whole.run(outputs, feeds), strict=True):
            np.testing.assert_array_equal(result, other)


def test_an_infinity_stays_where_it_is():
    """It makes no gradient of an element that it does not meet NaN."""
    attributes = attributes_of(1, (1, 2), {"strides": [1, 2]})
    feeds = {"X": np.ones((1, 1, 1, 9)), "W": np.ones((1, 1, 1, 2)), "dY": np.ones((1, 1, 1, 4))}
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    feeds["X"][..., 1] = np.inf
    feeds["X"][..., 8] = np.nan  # no window has it
    y, dW = depthwise_session(TensorProto.FLOAT, 4, attributes).run(["Y", "dW"], feeds)
    np.testing.assert_array_equal(y.ravel(), [np.inf, 2, 2, 2])
    np.testing.assert_array_equal(dW.ravel(), [4, np.inf])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *WRONG_WINDOWS,
        ({"pads": [0, 0, 3, 0]}, "expected less than 3, the size of a window, in dimension 2"),
        ({"group": 0}, "attribute group is 0; expected 1 or more"),
    ],
)
def test_attributes_that_do_not_fit(changes, message):
    with pytest.raises(Exception, match=f"bngrad.{CONV}, node 'forward': .*{message}"):
        depthwise_session(TensorProto.FLOAT, 4, attributes_of(2, (3, 3), {}) | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"X": (2, 3, 7, 8)},
            r"X has shape \[2,3,7,8\]; expected \[N, C\] and 2 spatial dimensions, with C the",
        ),
        ({"W": (3, 1, 3, 3)}, r"W has shape \[3,1,3,3\]; expected \[M\], 1 and kernel_shape \[3,3\]"),
        ({"W": (2, 2, 3, 3)}, r"W has shape \[2,2,3,3\]; expected \[M\], 1 and kernel_shape \[3,3\]"),
        ({"W": (2, 1, 3, 2)}, r"W has shape \[2,1,3,2\]; expected \[M\], 1 and kernel_shape \[3,3\]"),
        ({"X": (2, 2, 0, 8), "dY": (2, 2, 5, 6)}, r"dY has shape \[2,2,5,6\]; expected \[2,2,0,6\]"),
        ({"dY": (2, 2, 5, 5)}, r"dY has shape \[2,2,5,5\]; expected \[2,2,5,6\], the shape of the output"),
    ],
)
def test_shapes_that_do_not_fit(changes, message):
    shapes = {"X": (2, 2, 7, 8), "W": (2, 1, 3, 3), "dY": (2, 2, 5, 6)} | changes
    feeds = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    session = depthwise_session(TensorProto.FLOAT, 4, attributes_of(2, (3, 3), {}))
    with pytest.raises(Exception, match=message):
        session.run(None, feeds)


@pytest.mark.parametrize(("pad", "is_refused"), [(2**31 - 2, True), (0, False)])
def test_a_padding_that_is_much_larger_than_the_data(pad, is_refused):
    """It is refused; without it no window fits."""
    attributes = attributes_of(1, (2, 2), {"dilations": [2**31 - 1] * 2, "pads": [pad] * 4})
    session = depthwise_session(TensorProto.FLOAT, 4, attributes)
    feeds = {"X": (1, 1, 9, 9), "W": (1, 1, 2, 2), "dY": (1, 1, 0, 0)}
    feeds = {name: np.ones(shape, np.float32) for name, shape in feeds.items()}
    if is_refused:
        with pytest.raises(Exception, match="expected a plane with its padding of at most 16 times"):
            session.run(None, feeds)
    else:
        y, *gradients = session.run(None, feeds)
        assert y.shape == (1, 1, 0, 0)
        assert not any(gradient.any() for gradient in gradients)


def test_a_session_on_a_gpu_has_no_kernel():
    """ONNX Runtime inlines the functions of a model there: its own kernels of Conv are on the GPU."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("bngrad.device", "cuda")
    bngrad.register(options)
    attributes = attributes_of(2, (3, 3), {})
    node = helper.make_node(CONV, ["X", "W"], ["Y"], "forward", domain="bngrad", **attributes)
    info = helper.make_tensor_value_info
    shape = [None] * 4
    graph = helper.make_graph(
        [node],
        "test",
        [info(name, TensorProto.FLOAT, shape) for name in ("X", "W")],
        [info("Y", TensorProto.FLOAT, None)],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("bngrad", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    with pytest.raises(Exception, match=CONV):
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
