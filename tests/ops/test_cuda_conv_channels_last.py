"""ConvChannelsLast's CUDA kernel in real sessions without a card: see test_cuda_conv_grad.py."""

from __future__ import annotations

import ctypes

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import bngrad
from bngrad.graph.conv_channels_last import conv_channels_last
from bngrad.graph.fresh_names import Names
from bngrad.graph.node_makers import NodesAtEnd
from bngrad.validation.training_ops.convolution import conv
from test_cuda_conv_grad import CASES, TYPES, WRONG_ATTRIBUTES, attributes_of, printed_by, session_of
from test_programs import only_linux

pytestmark = only_linux


@pytest.fixture(scope="module")
def library(build):
    """The library, and the one in place of cuDNN."""
    path = build / "tests" / "libbngrad_cuda_on_cpu.so"
    if not path.exists():
        pytest.skip("this system has no contexts, in which the kernels run")
    return path


def last(shape):
    """A shape with the channels as the last dimension."""
    return (shape[0], *shape[2:], shape[1])


def model_of(rank, attributes, kind="float"):
    """A node between Casts from and to double, with free dimensions."""
    _, element_type, _ = TYPES[kind]
    nodes = [helper.make_node("Cast", [name], [f"{name}_T"], to=element_type) for name in "XW"]
    nodes += [
        helper.make_node("ConvChannelsLast", ["X_T", "W_T"], ["Y_T"], "the_node", domain="bngrad", **attributes),
        helper.make_node("Cast", ["Y_T"], ["Y"], to=TensorProto.DOUBLE),
    ]
    infos = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, [None] * rank) for name in "XW"]
    graph = helper.make_graph(nodes, "test", infos, [helper.make_tensor_value_info("Y", TensorProto.DOUBLE, None)])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("bngrad", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def feeds_of(x, w, kind="float", seed=0):
    """Random values that the type has, in double, of shapes with the channels as the second dimension."""
    rng, (dtype, _, _) = np.random.default_rng(seed), TYPES[kind]
    shapes = {"X": last(x), "W": last(w)}
    return {name: rng.standard_normal(shape).astype(dtype).astype(np.float64) for name, shape in shapes.items()}


def expected_of(feeds, attributes):
    x, w = (np.moveaxis(feeds[name], -1, 1) for name in "XW")
    return np.moveaxis(conv(x, w, **attributes), 1, -1)


def check(library, x, w, attributes, kind="float"):
    attributes = attributes_of(w, attributes)
    feeds = feeds_of(x, w, kind)
    (y,) = session_of(library, model_of(len(x), attributes, kind)).run(None, feeds)
    expected = expected_of(feeds, attributes)
    assert y.shape == expected.shape
    assert np.abs(y - expected).max() <= TYPES[kind][2] * np.abs(expected).max()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("kind", TYPES)
def test_the_convolution(library, case, kind):
    """In the layout, or transposed where the library in place of cuDNN does not take it."""
    check(library, *case, kind)


@pytest.mark.parametrize("case", ["3x3", "1-d", "pads differ"])
def test_no_algorithm_is_proposed(library, case, monkeypatch):
    """Algorithm 0 is for all shapes."""
    monkeypatch.setenv("FAKE_CUDNN_CHOICE", "none")
    check(library, *CASES[case])


def test_tf32_is_the_option_of_the_session(library, monkeypatch):
    """A cuDNN that multiplies float in TF32 only computes in a session that allows it, and in no other."""
    library = library.with_name("libcuda_options.so")
    for tf32 in ("0", "1"):
        monkeypatch.setenv("FAKE_CUDA_USE_TF32", tf32)
        monkeypatch.setenv("FAKE_CUDNN_TF32", tf32)
        for kind in TYPES:
            check(library, *CASES["3x3"], kind)
    monkeypatch.setenv("FAKE_CUDA_USE_TF32", "0")
    with pytest.raises(Exception, match="cudnnConvolutionForward failed"):
        check(library, *CASES["3x3"])


@pytest.mark.parametrize("case", ["3x3", "1-d", "pads differ", "divided"])
def test_cudnn_computes_with_channels_last(library, case, monkeypatch):
    """Only what cuDNN does not take is transposed."""
    monkeypatch.setenv("FAKE_CUDNN_LAYOUT", "last")
    check(library, *CASES[case])
    with pytest.raises(Exception, match="cudnnGetConvolutionForwardWorkspaceSize failed"):
        check(library, *CASES["group"])


@pytest.mark.parametrize(
    ("x", "w"),
    [
        ((0, 3, 6, 5), (4, 3, 3, 3)),
        ((2, 3, 6, 5), (0, 3, 3, 3)),
        ((2, 3, 6, 1), (4, 3, 3, 6)),
        ((2, 0, 6, 5), (4, 0, 3, 3)),
    ],
    ids=["no samples", "no outputs", "smaller than the kernel", "no channels"],
)
def test_empty(library, x, w):
    """A sum of nothing is 0."""
    attributes = attributes_of(w, {"pads": [1, 1, 1, 1]})
    (y,) = session_of(library, model_of(4, attributes)).run(None, feeds_of(x, w))
    out = [max(0, size + 3 - kernel) for size, kernel in zip(x[2:], w[2:], strict=True)]
    np.testing.assert_array_equal(y, np.zeros((x[0], *out, w[0])))


@pytest.mark.parametrize("case", ["pads differ", "group"])
def test_later_runs_create_nothing(library, case):
    """A captured CUDA graph may contain only what a run with the same shapes has created before."""
    x, w, attributes = CASES[case]
    session = session_of(library, model_of(4, attributes_of(w, attributes)))
    calls = ctypes.CDLL(str(library.with_name("libfake_cudnn.so"))).fake_cudnn_calls_that_create
    counts, bits = [], []
    for samples in (2, 5, 2, 5):
        counts.append(calls())
        bits.append(session.run(None, feeds_of((samples, *x[1:]), w, seed=samples))[0].tobytes())
    assert counts[0] < counts[1] < counts[2] == counts[3] == calls()
    assert bits[:2] == bits[2:]


def test_the_node_of_a_model(library):
    """A node that names its function by an overload is the kernel's, where the op is registered."""
    x, w, attributes = CASES["pads differ"]
    attributes = attributes_of(w, attributes)
    values = [
        ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(last(shape)))
        for name, shape in (("X", x), ("W", w))
    ]
    graph = ir.Graph(values, [], nodes=[], opset_imports={"": 17}, name="test")
    model = ir.Model(graph, ir_version=10)
    graph.outputs.append(conv_channels_last(NodesAtEnd(graph, Names(model), "the"), model, *values, **attributes))
    feeds = {name: array.astype(np.float32) for name, array in feeds_of(x, w).items()}
    proto = ir.to_proto(model)
    calls = ctypes.CDLL(str(library.with_name("libfake_cudnn.so"))).fake_cudnn_calls_that_create
    before = calls()
    (y,) = session_of(library, proto.SerializeToString()).run(None, feeds)
    assert calls() > before
    (expected,) = bngrad.session(model, "function").run(None, feeds)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5)
    before = calls()
    (again,) = session_of(library, proto.SerializeToString(), None).run(None, feeds)
    assert calls() == before
    assert again.tobytes() == expected.tobytes()


REFUSED = {
    "W": (
        {"W": (4, 3, 3, 2)},
        "W has shape [4,3,3,2]; expected [4,3,3,3], [M], kernel_shape and [C / group]",
    ),
    "M": ({"W": (5, 3, 3, 3)}, "W has shape [5,3,3,3]; expected a first dimension that is a multiple of group, 2"),
    "C": (
        {"X": (2, 6, 5, 5)},
        "X has shape [2,6,5,5]; expected [N], 2 spatial dimensions and [C], with C a multiple of group, 2",
    ),
    "large": (
        {"X": (2, 40, 20, 6)},
        (
            "a padded sample of X or a sample of Y has 5544 elements, and W 108; cuDNN takes at most 3000. "
            "Leave out --channels-last"
        ),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_data(library, case):
    changed, message = REFUSED[case]
    attributes = attributes_of((4, 3, 3, 3), {"pads": [1, 1, 1, 1], "group": 2})
    shapes = {"X": (2, 6, 5, 6), "W": (4, 3, 3, 3)} | changed
    with pytest.raises(Exception, match=r"bngrad\.ConvChannelsLast, node 'the_node'") as error:
        session_of(library, model_of(4, attributes)).run(None, {k: np.zeros(v) for k, v in shapes.items()})
    assert str(error.value).endswith(message)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [case for case in WRONG_ATTRIBUTES if "channels_last" not in case[0]],
    ids=lambda value: str(value)[:30],
)
def test_wrong_attributes(library, wrong, message):
    attributes = attributes_of((4, 3, 3, 3), {"pads": [1, 1, 1, 1]}) | wrong
    with pytest.raises(Exception, match=r"bngrad\.ConvChannelsLast, node 'the_node'") as error:
        session_of(library, model_of(4, attributes))
    assert message.replace("--conv-grad", "--channels-last") in str(error.value)


FAULTS = [
    "cudnnCreateTensorDescriptor",
    "cudnnSetTensorNdDescriptor",
    "cudnnCreateFilterDescriptor",
    "cudnnSetFilterNdDescriptor",
    "cudnnCreateConvolutionDescriptor",
    "cudnnSetConvolutionNdDescriptor",
    "cudnnSetConvolutionGroupCount",
    "cudnnSetConvolutionMathType",
    "cudnnGetConvolutionForwardAlgorithm_v7",
    "cudnnGetConvolutionForwardWorkspaceSize",
    "cudnnConvolutionForward",
]
"""Functions in the order in which the first run calls them."""


def test_faults(library):
    """Each ends a run in one line that names the node, and the session goes on once it is over."""
    body = f"""
import json, os
from test_cuda_conv_channels_last import *
x, w, attributes = CASES["pads differ"]
attributes = attributes_of(w, attributes)
feeds = feeds_of(x, w)
session = session_of({str(library)!r}, model_of(4, attributes))
messages = {{}}
for name in FAULTS:
    os.environ["FAKE_CUDNN_FAIL"] = name
    try:
        session.run(None, feeds)
    except Exception as error:
        messages[name] = str(error)
    del os.environ["FAKE_CUDNN_FAIL"]
messages["difference"] = np.abs(session.run(None, feeds)[0] - expected_of(feeds, attributes)).max()
print(json.dumps(messages))
"""
    messages = printed_by(body)
    assert messages.pop("difference") < 1e-5
    assert list(messages) == FAULTS
    for fault, message in messages.items():
        end = f"{fault} failed with CUDNN_STATUS_EXECUTION_FAILED (5000)"
        assert message.endswith(f"bngrad.ConvChannelsLast, node 'the_node': {end}")
