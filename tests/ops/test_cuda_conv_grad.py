"""ConvGrad's CUDA kernel in real sessions without a card.

The ops of a library are those of the CPU's provider, NVIDIA's driver is an emulation, and cuDNN is a library that
computes in plain loops (fake_cudnn.cc); at most 3000 elements of an array are in one of its calls.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper

import bngrad
from bngrad.validation.training_ops._windows import slide
from bngrad.validation.training_ops.convolution import conv_grad
from test_programs import only_linux

pytestmark = only_linux

HERE = Path(__file__).parent
INPUTS, OUTPUTS = ("dY", "X", "W"), ("dX", "dW", "dB")
LAYOUTS = ("channels first", "channels last")
TYPES = {
    "float": (np.dtype(np.float32), TensorProto.FLOAT, 1e-6),
    "double": (np.dtype(np.float64), TensorProto.DOUBLE, 1e-13),
    "float16": (np.dtype(np.float16), TensorProto.FLOAT16, 5e-4),
    "bfloat16": (np.dtype(ml_dtypes.bfloat16), TensorProto.BFLOAT16, 4e-3),
}
"""The types, with the largest error relative to the largest value."""
CASES = {
    "1x1": ((2, 3, 5, 5), (4, 3, 1, 1), {}),
    "3x3": ((2, 3, 6, 5), (4, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    "stride": ((2, 3, 9, 10), (4, 3, 3, 2), {"pads": [1, 0, 1, 0], "strides": [2, 3]}),
    "columns unread": ((2, 2, 9, 10), (4, 2, 2, 2), {"strides": [3, 4]}),
    "dilation": ((2, 3, 9, 8), (4, 3, 3, 2), {"dilations": [2, 3], "pads": [2, 1, 2, 1]}),
    "pads differ": ((2, 3, 6, 7), (4, 3, 3, 2), {"pads": [0, 1, 2, 0], "strides": [2, 1]}),
    "pads larger than the kernel": ((3, 2, 3, 4), (3, 2, 2, 2), {"pads": [3, 2, 4, 3], "strides": [1, 2]}),
    "pads larger than the kernel, even": ((2, 2, 3, 4), (3, 2, 2, 2), {"pads": [2, 3, 2, 3], "dilations": [1, 2]}),
    "group": ((2, 6, 5, 6), (4, 3, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
    "depthwise": ((2, 4, 8, 7), (8, 1, 3, 3), {"group": 4, "pads": [1, 1, 0, 1], "strides": [2, 2]}),
    "1-d": ((2, 3, 11), (4, 3, 3), {"pads": [1, 2], "strides": [2]}),
    "1-d, group": ((2, 4, 10), (6, 2, 3), {"group": 2, "dilations": [2]}),
    "3-d": ((2, 2, 5, 4, 6), (3, 2, 3, 2, 3), {"pads": [1, 0, 1, 1, 0, 1], "strides": [2, 1, 2]}),
    "3-d, pads differ": ((2, 2, 4, 5, 4), (3, 2, 3, 2, 3), {"pads": [1, 0, 2, 0, 1, 1], "dilations": [1, 2, 1]}),
    "divided": ((9, 3, 16, 15), (4, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    "divided, pads differ": ((7, 3, 16, 15), (4, 3, 3, 3), {"pads": [0, 1, 1, 2], "strides": [2, 1]}),
}


@pytest.fixture(scope="module")
def library(build):
    """The library, and the one in place of cuDNN."""
    path = build / "tests" / "libbngrad_cuda_on_cpu.so"
    if not path.exists():
        pytest.skip("this system has no contexts, in which the kernels run")
    return path


def attributes_of(w, attributes):
    """All attributes of the op."""
    rank = len(w) - 2
    defaults = {
        "dilations": [1] * rank,
        "group": 1,
        "kernel_shape": w[2:],
        "pads": [0, 0] * rank,
        "strides": [1] * rank,
    }
    return defaults | attributes


def model_of(rank, attributes, outputs=OUTPUTS, kind="float"):
    """A node between Casts from and to double, with free dimensions."""
    _, element_type, _ = TYPES[kind]
    nodes = [helper.make_node("Cast", [name], [f"{name}_T"], to=element_type) for name in INPUTS]
    typed = [f"{name}_T" if name else "" for name in outputs]
    nodes.append(
        helper.make_node("ConvGrad", [f"{n}_T" for n in INPUTS], typed, "the_node", domain="bngrad", **attributes)
    )
    names = [name for name in outputs if name]
    nodes += [helper.make_node("Cast", [f"{name}_T"], [name], to=TensorProto.DOUBLE) for name in names]
    infos = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, [None] * rank) for name in INPUTS]
    graph = helper.make_graph(
        nodes, "test", infos, [helper.make_tensor_value_info(name, TensorProto.DOUBLE, None) for name in names]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("bngrad", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def session_of(library, model, device="cuda"):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if device is not None:
        options.add_session_config_entry("bngrad.device", device)
    options.register_custom_ops_library(str(library))
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def feeds_of(x, w, attributes, kind="float", seed=0):
    """Random values that the type has, in double."""
    rng = np.random.default_rng(seed)
    geometry = {name: value for name, value in attributes.items() if name not in ("group", "kernel_shape")}
    shapes = {"dY": (x[0], w[0], *slide(x[2:], w[2:], **geometry).out), "X": x, "W": w}
    dtype, _, _ = TYPES[kind]
    return {name: rng.standard_normal(shape).astype(dtype).astype(np.float64) for name, shape in shapes.items()}


def in_layout(arrays, channels_last):
    """The arrays, of which those with channels have them second."""
    return {
        name: np.moveaxis(array, 1, -1) if channels_last and array.ndim > 1 else array
        for name, array in arrays.items()
    }


def check(library, x, w, attributes, kind="float", outputs=OUTPUTS, chunks=1, channels_last=False):
    attributes = attributes_of(w, attributes)
    feeds = feeds_of(x, w, attributes, kind)
    layout = {"channels_last": 1} if channels_last else {}
    session = session_of(library, model_of(len(x), attributes | layout, outputs, kind))
    arrays = session.run(None, in_layout(feeds, channels_last))
    results = dict(zip(filter(None, outputs), arrays, strict=True))
    bound = TYPES[kind][2] * chunks
    exact = dict(zip(OUTPUTS, conv_grad(**feeds, **attributes), strict=True))
    for name, expected in in_layout(exact, channels_last).items():
        if name in outputs:
            assert results[name].shape == expected.shape
            assert np.abs(results[name] - expected).max() <= bound * np.abs(expected).max(), name


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("channels_last", [False, True], ids=LAYOUTS)
def test_gradients(library, case, kind, channels_last):
    """Of a batch in several calls, dW is rounded after each."""
    check(library, *case, kind, chunks=3 if case[0][0] > 3 else 1, channels_last=channels_last)


@pytest.mark.parametrize(
    "outputs", [("dX",), ("", "dW"), ("", "", "dB"), ("dX", "", "dB"), ("", "dW", "dB")], ids=str
)
@pytest.mark.parametrize("case", ["3x3", "pads differ", "group"])
@pytest.mark.parametrize("channels_last", [False, True], ids=LAYOUTS)
def test_outputs_left_out(library, case, outputs, channels_last):
    check(library, *CASES[case], outputs=outputs, channels_last=channels_last)


@pytest.mark.parametrize("shape", [(0, 3, 6, 5), (2, 3, 0, 5), (2, 0, 6, 5)], ids=str)
@pytest.mark.parametrize("channels_last", [False, True], ids=LAYOUTS)
def test_empty(library, shape, channels_last):
    """Without elements of X the gradients of the weights are zero, and that of a bias may be none."""
    w = (4, shape[1], 3, 3)
    attributes = attributes_of(w, {"pads": [2, 1, 2, 1]})
    feeds = feeds_of((2, *shape[1:]), w, attributes)
    feeds = {name: array if name == "W" else array[: shape[0]] for name, array in feeds.items()}
    model = model_of(4, attributes | {"channels_last": int(channels_last)})
    dx, dw, db = session_of(library, model).run(None, in_layout(feeds, channels_last))
    zeros = in_layout({"dX": np.zeros(shape), "dW": np.zeros(w)}, channels_last)
    np.testing.assert_array_equal(dx, zeros["dX"], strict=True)
    np.testing.assert_array_equal(dw, zeros["dW"], strict=True)
    np.testing.assert_allclose(db, feeds["dY"].sum(axis=(0, 2, 3)), atol=1e-5)


def test_no_output_channels(library):
    attributes = attributes_of((0, 3, 1, 1), {})
    feeds = feeds_of((2, 3, 4, 4), (0, 3, 1, 1), attributes)
    dx, dw, db = session_of(library, model_of(4, attributes)).run(None, feeds)
    np.testing.assert_array_equal(dx, np.zeros((2, 3, 4, 4)))
    assert (dw.shape, db.shape) == ((0, 3, 1, 1), (0,))


@pytest.mark.parametrize("case", ["pads differ", "group"])
@pytest.mark.parametrize("channels_last", [False, True], ids=LAYOUTS)
def test_later_runs_create_nothing(library, case, channels_last):
    """A captured CUDA graph may contain only what a run with the same shapes has created before."""
    x, w, attributes = CASES[case]
    attributes = attributes_of(w, attributes)
    session = session_of(library, model_of(4, attributes | {"channels_last": int(channels_last)}))
    calls = ctypes.CDLL(str(library.with_name("libfake_cudnn.so"))).fake_cudnn_calls_that_create
    counts, bits = [], []
    for samples in (2, 5, 2, 5, 5):
        feeds = feeds_of((samples, *x[1:]), w, attributes, seed=samples)
        results = session.run(None, in_layout(feeds, channels_last))
        counts.append(calls())
        bits.append([result.tobytes() for result in results])
    assert counts[0] < counts[1] == counts[2] == counts[3] == counts[4]
    assert bits[0] == bits[2]
    assert bits[1] == bits[3] == bits[4]


def test_concurrent_runs(library):
    """Nodes of a session share their scratch memory, and so do runs."""
    x, w, attributes = CASES["divided, pads differ"]
    attributes = attributes_of(w, attributes)
    session = session_of(library, model_of(4, attributes))
    feeds = [feeds_of((samples, *x[1:]), w, attributes, seed=samples) for samples in (1, 2, 3, 7)]
    expected = [session.run(None, feed)[1].tobytes() for feed in feeds]
    with ThreadPoolExecutor(4) as pool:
        results = pool.map(lambda i: session.run(None, feeds[i % 4])[1].tobytes() == expected[i % 4], range(24))
    assert all(results)


@pytest.mark.parametrize("channels_last", [False, True], ids=LAYOUTS)
def test_tf32_is_the_option_of_the_session(library, channels_last, monkeypatch):
    """A cuDNN that multiplies float in TF32 only computes in a session that allows it, and in no other."""
    library = library.with_name("libcuda_options.so")
    for tf32 in ("0", "1"):
        monkeypatch.setenv("FAKE_CUDA_USE_TF32", tf32)
        monkeypatch.setenv("FAKE_CUDNN_TF32", tf32)
        for kind in TYPES:
            check(library, *CASES["3x3"], kind, channels_last=channels_last)
    monkeypatch.setenv("FAKE_CUDA_USE_TF32", "0")
    with pytest.raises(Exception, match="cudnnConvolutionBackwardFilter failed"):
        check(library, *CASES["3x3"], channels_last=channels_last)


@pytest.mark.parametrize("case", ["3x3", "1-d", "pads differ", "divided"])
def test_cudnn_computes_with_channels_last(library, case, monkeypatch):
    """Only what cuDNN does not take is transposed."""
    monkeypatch.setenv("FAKE_CUDNN_LAYOUT", "last")
    check(library, *CASES[case], chunks=3, channels_last=True)
    with pytest.raises(Exception, match="cudnnGetConvolutionBackwardFilterWorkspaceSize failed"):
        check(library, *CASES["group"], channels_last=True)


@pytest.mark.parametrize("case", ["3x3", "1-d", "pads differ", "divided"])
def test_cudnn_refuses_channels_last(library, case, monkeypatch):
    monkeypatch.setenv("FAKE_CUDNN_LAYOUT", "first")
    check(library, *CASES[case], chunks=3, channels_last=True)


@pytest.mark.parametrize("case", ["3x3", "1-d"])
@pytest.mark.parametrize("channels_last", [False, True], ids=LAYOUTS)
def test_no_algorithm_is_proposed(library, case, channels_last, monkeypatch):
    """Algorithm 1 is deterministic, and for all shapes."""
    monkeypatch.setenv("FAKE_CUDNN_CHOICE", "none")
    check(library, *CASES[case], channels_last=channels_last)


def test_the_op_of_a_differentiated_model(library, monkeypatch):
    """A node that names its function by an overload is the kernel's."""
    forward = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["": 18]>
        test (float[N, 3, 8, 7] x, float[4, 3, 3, 3] w, float[4] b) => (float loss) {
            y = Conv <pads = [1, 1, 1, 0], strides = [2, 2]> (x, w, b)
            square = Mul(y, y)
            loss = ReduceSum <keepdims = 0> (square)
        }""")
    model = bngrad.differentiate(ir.from_proto(forward), wrt=["x", "w", "b"], conv_grad=True)
    proto = ir.to_proto(model)
    assert any((node.domain, node.op_type) == ("bngrad", "ConvGrad") for node in proto.graph.node)
    rng = np.random.default_rng(0)
    shapes = {"x": (2, 3, 8, 7), "w": (4, 3, 3, 3), "b": (4,)}
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    session = session_of(library, proto.SerializeToString())
    by_function = bngrad.session(model, "function").run(None, feeds)
    for result, expected in zip(session.run(None, feeds), by_function, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
    monkeypatch.setenv("FAKE_CUDNN_FAIL", "cudnnConvolutionBackwardData")
    with pytest.raises(Exception, match="cudnnConvolutionBackwardData failed with CUDNN_STATUS_EXECUTION_FAILED"):
        session.run(None, feeds)
    for device in (None, "cpu", "cuda of a long name"):  # where the op is not registered, its function runs
        results = session_of(library, proto.SerializeToString(), device).run(None, feeds)
        assert [a.tobytes() for a in results] == [a.tobytes() for a in by_function]


WRONG_SHAPES = {
    "dY": ((2, 4, 6, 6), "dY has shape [2,4,6,6]; expected [2,4,6,5], the shape of the output of Conv"),
    "X": ((2, 4, 6, 5), "W has shape [4,3,3,3]; expected [4,4,3,3], [M, C / group] and kernel_shape"),
    "W": ((4, 3, 3, 2), "W has shape [4,3,3,2]; expected [4,3,3,3], [M, C / group] and kernel_shape"),
}


WRONG_SHAPES_LAST = {
    "dY": (
        (2, 6, 6, 4),
        "dY has shape [2,6,6,4]; expected [2,6,5,4], the shape of the output of Conv with channels last",
    ),
    "X": ((2, 6, 5, 4), "W has shape [4,3,3,3]; expected [4,3,3,4], [M], kernel_shape and [C / group]"),
    "W": ((4, 3, 2, 3), "W has shape [4,3,2,3]; expected [4,3,3,3], [M], kernel_shape and [C / group]"),
}


@pytest.mark.parametrize("name", WRONG_SHAPES)
@pytest.mark.parametrize("channels_last", [False, True], ids=LAYOUTS)
def test_wrong_shapes(library, name, channels_last):
    x, w, attributes = CASES["3x3"]
    attributes = attributes_of(w, attributes)
    shape, message = (WRONG_SHAPES_LAST if channels_last else WRONG_SHAPES)[name]
    feeds = in_layout(feeds_of(x, w, attributes), channels_last) | {name: np.zeros(shape)}
    model = model_of(4, attributes | {"channels_last": int(channels_last)})
    with pytest.raises(Exception, match=r"bngrad\.ConvGrad, node 'the_node'") as error:
        session_of(library, model).run(None, feeds)
    assert str(error.value).endswith(message)


WRONG_ATTRIBUTES = [
    ({"strides": [1]}, "attribute strides is [1]; expected 2 values of 1 or more"),
    ({"dilations": [1, 0]}, "attribute dilations is [1,0]; expected 2 values of 1 or more"),
    ({"pads": [1, 1, -1, 1]}, "attribute pads is [1,1,-1,1]; expected 4 values of 0 or more"),
    ({"group": 0}, "attribute group is 0; expected 1 or more"),
    ({"channels_last": 2}, "attribute channels_last is 2; expected 0 or 1"),
    ({"channels_last": 1.0}, "attribute channels_last is missing or not of type int"),
    ({"channels_last": "yes"}, "attribute channels_last is missing or not of type int"),
    (
        {"kernel_shape": [1] * 4, "strides": [1] * 4, "dilations": [1] * 4, "pads": [0] * 8},
        "attribute kernel_shape is [1,1,1,1]; on a GPU it has 1 to 3 values. Leave out --conv-grad",
    ),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG_ATTRIBUTES, ids=lambda value: str(value)[:30])
def test_wrong_attributes(library, wrong, message):
    attributes = attributes_of((4, 3, 3, 3), {"pads": [1, 1, 1, 1]}) | wrong
    with pytest.raises(Exception, match=r"bngrad\.ConvGrad, node 'the_node'") as error:
        session_of(library, model_of(4, attributes))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("x", "channels_last", "message"),
    [
        (
            (2, 5, 6, 5),
            0,
            "X has shape [2,5,6,5]; expected [N, C] and 2 spatial dimensions, with C a multiple of group, 2",
        ),
        (
            (2, 6, 5, 5),
            1,
            "X has shape [2,6,5,5]; expected [N], 2 spatial dimensions and [C], with C a multiple of group, 2",
        ),
        ((2, 2, 60, 50), 0, "has 12000 elements, and W 36; cuDNN takes at most 3000. Leave out --conv-grad"),
    ],
    ids=["group", "group, channels last", "large"],
)
def test_refused_data(library, x, channels_last, message):
    attributes = attributes_of((4, 1, 3, 3), {"pads": [1, 1, 1, 1], "group": 2})
    feeds = feeds_of((2, 2, *x[2:]), (4, 1, 3, 3), attributes) | {"X": np.zeros(x)}
    with pytest.raises(Exception, match=r"bngrad\.ConvGrad, node 'the_node'") as error:
        session_of(library, model_of(4, attributes | {"channels_last": channels_last})).run(None, feeds)
    assert message in str(error.value)


FAULTS = [
    "cudnnCreate",
    "cudnnSetStream",
    "cudnnCreateTensorDescriptor",
    "cudnnSetTensorNdDescriptor",
    "cudnnCreateFilterDescriptor",
    "cudnnSetFilterNdDescriptor",
    "cudnnCreateConvolutionDescriptor",
    "cudnnSetConvolutionNdDescriptor",
    "cudnnSetConvolutionGroupCount",
    "cudnnSetConvolutionMathType",
    "cudnnGetConvolutionBackwardFilterAlgorithm_v7",
    "cudnnGetConvolutionBackwardFilterWorkspaceSize",
    "cudnnGetConvolutionBackwardDataAlgorithm_v7",
    "cudnnGetConvolutionBackwardDataWorkspaceSize",
    "cudnnConvolutionBackwardFilter",
    "cudnnConvolutionBackwardData",
]
"""Functions in the order in which the first run calls them."""


def printed_by(body):
    """The object that a program prints as JSON; it may import the tests."""
    folders = os.pathsep.join(map(str, (HERE, HERE.parent)))
    done = subprocess.run(
        [sys.executable, "-c", body],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": folders},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_faults(library):
    """Each ends a run in one line that names the node, and the session goes on once it is over."""
    body = f"""
import json, os
from test_cuda_conv_grad import *
x, w, attributes = CASES["pads differ"]
attributes = attributes_of(w, attributes)
feeds = feeds_of(x, w, attributes)
session = session_of({str(library)!r}, model_of(4, attributes))
messages = {{}}
faults = [("FAKE_CUDNN_VERSION", "8902"), ("FAKE_CUDA_FAIL", "cuMemsetD8Async")]
faults[1:1] = [("FAKE_CUDNN_FAIL", name) for name in FAULTS]
for variable, value in faults:
    os.environ[variable] = value
    try:
        session.run(None, feeds)
    except Exception as error:
        messages[value] = str(error)
    del os.environ[variable]
_, dw, _ = session.run(None, feeds)
messages["difference"] = np.abs(dw - conv_grad(**feeds, **attributes)[1]).max()
print(json.dumps(messages))
"""
    messages = printed_by(body)
    assert messages.pop("difference") < 1e-5
    expected = {name: f"{name} failed with CUDNN_STATUS_EXECUTION_FAILED (5000)" for name in FAULTS} | {
        "8902": "cuDNN has version 8.9; expected 9.0 or newer. Install it, or leave out --conv-grad",
        "cuMemsetD8Async": "cuMemsetD8Async failed with CUDA_ERROR_OUT_OF_MEMORY (2): out of memory",
    }
    assert messages.keys() == expected.keys()
    for fault, message in expected.items():
        assert messages[fault].endswith(f"bngrad.ConvGrad, node 'the_node': {message}")


MISSING = {
    "libnone.so": "cuDNN is not installed: .*libnone.so cannot be loaded. Install cuDNN 9, or",
    "libfake_cuda.so": "libfake_cuda.so has no cudnnGetVersion: expected cuDNN 9.0 or newer. Install",
}


@pytest.mark.parametrize("name", MISSING)
def test_cudnn_is_missing(build, library, name):
    command = [build / "tests" / "cudnn_test", library.with_name(name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.search(f"^error: .*{MISSING[name]}", done.stdout)
