"""TensorFlow's gradient ops, as tf2onnx leaves them, in standard ONNX."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from bngrad.errors import UnsupportedNodeError
from bngrad.passes.pipeline import rewrite
from dialects import node_model, run, worst_error
from tensorflow_gradient_cases import CASES, DOMAIN, ELEMENTWISE

RECORDED = Path(__file__).with_name("tensorflow_recorded.json")
"""The results of TensorFlow; tests/against_tensorflow/record.py records them."""


def case_model(case, domain=DOMAIN, **changed):
    outputs = [f"out_{index}" for index in range(case.outputs)]
    return node_model(
        case.op_type, case.inputs, outputs, domain=domain, constants=case.constants, **case.attributes | changed
    )


@pytest.mark.parametrize("name", CASES)
def test_the_numbers(name):
    case = CASES[name]
    got = run(rewrite(case_model(case)).model, case.inputs)
    for output, want in zip(got.values(), case.wanted(), strict=True):
        assert output.dtype == np.float32
        assert worst_error(output, want) < 2e-6


def test_the_formulas_are_those_of_tensorflow():
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    assert set(recorded) == set(CASES)
    for name, outputs in recorded.items():
        for output, want in zip(outputs, CASES[name].wanted(), strict=True):
            assert worst_error(np.reshape(output["data"], output["shape"]), want) < 2e-6, name


@pytest.mark.parametrize("name", ["ReluGrad", "MaxPoolGrad-NHWC-SAME-(2,2)-(2,2)", "BiasAddGrad-NHWC-4"])
def test_without_a_domain(name):
    """As tf2onnx leaves an op that it does not know."""
    case = CASES[name]
    got = run(rewrite(case_model(case, domain="")).model, case.inputs)
    assert worst_error(got["out_0"], case.wanted()[0]) < 2e-6


@pytest.mark.parametrize("op_type", ELEMENTWISE)
def test_attributes_of_the_converter_are_ignored(op_type):
    model = case_model(CASES[op_type], T=1, _has_manual_control_dependencies=1)
    assert rewrite(model).lowered


def test_a_dynamic_batch():
    case = CASES["Conv2DBackpropFilter-NHWC-SAME-(2,1)-(1,1)-1"]
    model = case_model(case)
    for value in model.graph.inputs:
        value.shape = ir.Shape(["N", *list(value.shape)[1:]])
    got = run(rewrite(model).model, case.inputs)
    assert worst_error(got["out_0"], case.wanted()[0]) < 2e-6


SHAPES = """<ir_version: 8, opset_import: ["" : 17, "tf" : 1]>
g (float[2,5,6,4] x, float[3,2,4,6] w, float[2,5,6,6] dy) => (float[2,5,6,4] dx, float[3,2,4,6] dw) {
    sx, sw = tf.ShapeN <N = 2, out_type = 6> (x, w)
    dx = tf.Conv2DBackpropInput <padding = "SAME", strides = [1, 1, 1, 1]> (sx, w, dy)
    dw = tf.Conv2DBackpropFilter <padding = "SAME", strides = [1, 1, 1, 1]> (x, sw, dy)
}"""


def test_shapes_of_other_tensors(rng):
    model = rewrite(ir.from_proto(onnx.parser.parse_model(SHAPES))).model
    feeds = {
        n: rng.standard_normal(s).astype(np.float32)
        for n, s in [("x", (2, 5, 6, 4)), ("w", (3, 2, 4, 6)), ("dy", (2, 5, 6, 6))]
    }
    got = run(model, feeds)
    x, w, dy = (array.astype(np.float64) for array in feeds.values())
    attributes = {"data_format": "NHWC", "padding": "SAME", "strides": [1, 1, 1, 1]}
    of_input = CASES["Conv2DBackpropInput-NHWC-SAME-(1,1)-(1,1)-1"].formula
    of_filter = CASES["Conv2DBackpropFilter-NHWC-SAME-(1,1)-(1,1)-1"].formula
    assert worst_error(got["dx"], of_input(x.shape, w, dy, **attributes)) < 2e-6
    assert worst_error(got["dw"], of_filter(x, w.shape, dy, **attributes)) < 2e-6


CONV = "Conv2DBackpropFilter-NHWC-SAME-(1,1)-(1,1)-1"
EXPLICIT = "Conv2DBackpropFilter-NHWC-EXPLICIT-(1,1)-(1,1)-1"
OF_INPUT = "Conv2DBackpropInput-NHWC-SAME-(1,1)-(1,1)-1"
DEPTHWISE = "DepthwiseConv2dNativeBackpropFilter-NHWC-SAME-(1,1)-(1,1)-1"
POOL = "MaxPoolGrad-NHWC-SAME-(2,2)-(2,2)"
AVERAGE = "AvgPoolGrad-NHWC-SAME-(2,2)-(2,2)"
SPARSE = "SparseSoftmaxCrossEntropyWithLogits-int32"
WRONG_ATTRIBUTES = {
    "format": (CONV, {"data_format": "NWHC"}, "data_format = 'NWHC'"),
    "padding": (CONV, {"padding": "FULL"}, "padding = 'FULL'"),
    "strides-of-rank-2": (CONV, {"strides": [1, 1]}, "its strides are [1, 1]; expected 4 numbers"),
    "stride-of-channels": (CONV, {"strides": [1, 1, 1, 2]}, "and 1 for batch and channels"),
    "stride-0": (POOL, {"strides": [1, 0, 1, 1]}, "at least 1"),
    "dilation-of-batch": (CONV, {"dilations": [2, 1, 1, 1]}, "its dilations are [2, 1, 1, 1]"),
    "depthwise-dilations": (DEPTHWISE, {"dilations": [1, 2, 2, 1]}, "which TensorFlow's own kernels ignore"),
    "ksize-of-channels": (POOL, {"ksize": [1, 2, 2, 3]}, "its ksize are [1, 2, 2, 3]"),
    "ksize-of-rank-5": (AVERAGE, {"ksize": [1, 2, 2, 2, 1]}, "its ksize are"),
    "pads-of-rank-2": (EXPLICIT, {"explicit_paddings": [1, 1, 1, 1]}, "expected 8 numbers, two for each"),
    "negative-pads": (EXPLICIT, {"explicit_paddings": [0, 0, -1, 0, 0, 0, 0, 0]}, "its explicit_paddings are"),
    "bias-format": ("BiasAddGrad-NHWC-4", {"data_format": "NCDHW"}, "data_format = 'NCDHW'"),
    "unknown-attribute": ("ReluGrad", {"alpha": 0.1}, "it has the attribute 'alpha'; expected none"),
}


@pytest.mark.parametrize("case", WRONG_ATTRIBUTES)
def test_wrong_attributes_are_refused(case):
    name, changed, reason = WRONG_ATTRIBUTES[case]
    with pytest.raises(UnsupportedNodeError) as error:
        rewrite(case_model(CASES[name], **changed))
    assert reason in str(error.value)


WRONG_TENSORS = {
    "no-gradient": ("ReluGrad", {"features": None}, "it has 1 inputs; expected 2: gradients, features"),
    "two-inputs": (POOL, {"grad": None}, "it has 2 inputs; expected 3: orig_input, orig_output, grad"),
    "relu-of-another-shape": ("ReluGrad", {"features": (3, 5)}, "expected one shape"),
    "data-of-rank-3": (CONV, {"input": (2, 5, 6)}, "its data have 3 dimensions; expected 4 or 5"),
    "gradient-of-rank-3": (CONV, {"out_backprop": (2, 5, 6)}, "has 3 dimensions; expected 4"),
    "gradient-of-other-channels": (
        CONV,
        {"out_backprop": (2, 5, 6, 5)},
        "its out_backprop has 5 channels; expected 6",
    ),
    "filter-of-other-channels": (
        OF_INPUT,
        {"filter": (3, 2, 3, 6)},
        "its data have 4 channels, and its filter 3 and 6",
    ),
    "filter-of-rank-3": (OF_INPUT, {"filter": (3, 4, 6)}, "its filter has 3 dimensions, and its data 4"),
    "depthwise-of-other-channels": (
        DEPTHWISE,
        {"input": (2, 5, 6, 3)},
        "its data have 3 channels, and its filter is for 4",
    ),
    "pool-of-rank-3": (POOL, {"orig_input": (5, 6, 3)}, "its data have 3 dimensions"),
    "features-of-rank-3": (SPARSE, {"features": (4, 5, 2)}, "has 3 dimensions; expected 2"),
    "labels-of-rank-2": (SPARSE, {"labels": (4, 5)}, "has 2 dimensions; expected 1"),
    "bias-of-rank-2": ("BiasAddGrad-NCHW-4", {"out_backprop": (3, 4)}, "its out_backprop has 2 dimensions"),
    "bias-of-rank-1": ("BiasAddGrad-NHWC-4", {"out_backprop": (3,)}, "its out_backprop has 1 dimensions"),
}


@pytest.mark.parametrize("case", WRONG_TENSORS)
def test_wrong_tensors_are_refused(case):
    name, changed, reason = WRONG_TENSORS[case]
    good = CASES[name]
    inputs = dict(good.inputs)
    for which, shape in changed.items():
        inputs[which] = None if shape is None else np.ones(shape, inputs[which].dtype)
    if inputs[list(inputs)[-1]] is None:
        inputs.pop(list(inputs)[-1])
    with pytest.raises(UnsupportedNodeError) as error:
        rewrite(case_model(good._replace(inputs=inputs)))
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (CONV, "the shape of its filter_sizes is unknown; expected constants"),
        (AVERAGE, "the spatial shape of its data is unknown"),
    ],
)
def test_shapes_that_only_a_run_tells_are_refused(name, reason):
    with pytest.raises(UnsupportedNodeError) as error:
        rewrite(case_model(CASES[name]._replace(constants=())))
    assert reason in str(error.value)


@pytest.mark.parametrize("label", [-1, 5])
def test_a_label_out_of_range_is_an_error(label):
    case = CASES[SPARSE]
    model = rewrite(case_model(case)).model
    with pytest.raises(Exception, match="Out of range"):
        run(model, case.inputs | {"labels": np.array([0, label, 1, 2], np.int32)})
