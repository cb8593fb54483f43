"""ConvGrad lowered: every form on what it is for, which one is taken, the order, and refusals."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from functools import wraps
from unittest.mock import patch

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import helper

from bngrad.errors import UnsupportedNodeError
from bngrad.opset.ort_dialect import MICROSOFT
from bngrad.passes.lower import LOWERINGS, data_gradient, depthwise, weight_gradient
from bngrad.passes.lower.convolution_operands import ConvolutionOperands
from bngrad.passes.lower.geometry import windows_of
from bngrad.passes.lower.lower_training import LowerTrainingPass
from bngrad.validation.float64 import evaluate
from bngrad.validation.training_ops._windows import slide
from bngrad.validation.training_ops.convolution import conv_grad

# (id, X of one image, W, attributes)
ONE_TAP = [
    ("one tap", (3, 4, 5), (4, 3, 1, 1), {}),
    ("one tap 1-d", (3, 7), (4, 3, 1), {}),
]
ONE_TAP_STRIDED = [
    ("one tap, strided", (3, 7, 8), (4, 3, 1, 1), {"strides": [2, 3]}),
    ("one tap, unread", (2, 9, 9), (3, 2, 1, 1), {"strides": [4, 5]}),
]
ONE_TAP_GROUPED = [("one tap, groups", (6, 4, 5), (4, 3, 1, 1), {"group": 2})]
DENSE = [
    ("dense", (3, 6, 5), (4, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    ("dense, uneven", (3, 6, 7), (2, 3, 3, 2), {"pads": [0, 1, 2, 1]}),
    ("dense, dilated", (2, 8, 9), (3, 2, 2, 3), {"dilations": [3, 2], "pads": [1, 2, 3, 0]}),
    ("dense, groups", (4, 5, 6), (6, 2, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
    ("dense, depthwise", (3, 5, 6), (3, 1, 3, 3), {"group": 3, "pads": [1, 1, 1, 1]}),
    ("dense, 1-d", (3, 9), (4, 3, 3), {"pads": [1, 2]}),
    ("dense, 3-d", (2, 4, 5, 3), (3, 2, 2, 3, 2), {"pads": [1, 1, 0, 0, 1, 1]}),
]
STRIDED = [
    ("strided", (3, 8, 9), (4, 3, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("strided, unread", (2, 9, 12), (3, 2, 2, 3), {"strides": [3, 4], "dilations": [1, 2]}),
    ("strided, groups", (4, 7, 6), (2, 2, 3, 2), {"strides": [2, 1], "group": 2, "pads": [1, 0, 0, 1]}),
    ("strided, dilated 3-d", (2, 6, 5, 7), (2, 2, 2, 2, 2), {"strides": [2, 1, 1], "dilations": [1, 1, 3]}),
]
APART = [
    ("apart", (4, 6, 5), (4, 1, 3, 3), {"group": 4, "pads": [1, 1, 1, 1]}),
    ("apart, strided", (3, 9, 8), (3, 1, 3, 2), {"group": 3, "strides": [2, 3], "pads": [1, 1, 0, 1]}),
    ("apart, dilated", (3, 9, 8), (3, 1, 3, 2), {"group": 3, "dilations": [2, 3], "pads": [2, 1, 1, 2]}),
    ("apart, several each", (3, 6, 5), (6, 1, 3, 3), {"group": 3, "pads": [1, 1, 1, 1]}),
]
APART_ELSEWHERE = [
    ("apart 1-d", (3, 9), (6, 1, 3), {"group": 3, "pads": [1, 1], "strides": [2]}),
    ("apart 3-d", (2, 4, 5, 3), (2, 1, 2, 3, 3), {"group": 2, "pads": [1, 1, 1, 0, 1, 1]}),
]
ANY = [*ONE_TAP, *ONE_TAP_STRIDED, *ONE_TAP_GROUPED, *DENSE, *STRIDED]

FOR = {
    data_gradient.conv: [*ONE_TAP, *ONE_TAP_GROUPED, *DENSE],
    data_gradient.product: ONE_TAP,
    data_gradient.conv_transpose: ANY,
    weight_gradient.product_by_image: [*ONE_TAP, *ONE_TAP_STRIDED, *ONE_TAP_GROUPED],
    weight_gradient.product: [*ONE_TAP, *ONE_TAP_STRIDED],
    weight_gradient.exchanged: ANY,
    weight_gradient.over_gradient: [*ONE_TAP, *ONE_TAP_GROUPED, *DENSE],
    weight_gradient.over_data: ANY,
    depthwise.of_images: APART,
    depthwise.of_rows: APART,
    depthwise.of_kernel_elements: [*APART, *APART_ELSEWHERE],
}
KNOWN_EXTENTS = {depthwise.of_images, depthwise.of_rows}


def model_of(x, w, attributes, outputs=("dX", "dW"), *, symbolic=False):
    """One ConvGrad of float, of a batch N; with symbolic extents of X if asked."""
    extents = [f"X{i}" for i in range(1, len(x))] if symbolic else x[1:]
    shapes = {
        "dY": ["N", w[0], *(f"Y{i}" for i in range(1, len(x)))],
        "X": ["N", x[0], *extents],
        "W": w,
        "B": w[:1],
    }
    values = {
        name: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()
    }
    results = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shapes[name[1]]) for name in outputs if name
    ]
    node = helper.make_node("ConvGrad", ["dY", "X", "W"], outputs, "node", domain=MICROSOFT, **attributes)
    graph = helper.make_graph([node], "g", [values[name] for name in ("dY", "X", "W")], results)
    imports = [helper.make_opsetid("", 18), helper.make_opsetid(MICROSOFT, 1)]
    return ir.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=8))


def lowered(model, rewrite=None):
    """The model, lowered as it always is, or by another function."""
    op = MICROSOFT, "ConvGrad"
    changed = {op: replace(LOWERINGS[op], rewrite=rewrite)} if rewrite else {}
    with patch.dict(LOWERINGS, changed):
        return LowerTrainingPass()(model).model


def by_form(form):
    """A lowering to one form of dX or dW, whatever the rule selects."""

    def rewrite(site):
        dY, x, w = site.node.inputs
        windows = windows_of(site, x, dY, [int(n) for n in w.shape[2:]])
        operands = ConvolutionOperands(site, windows, x, dY, w, site.attribute("group", 1))
        return [form(operands) if name == target(form) else None for name in ("dX", "dW")]

    return rewrite


def target(form):
    return "dX" if form.__module__ == data_gradient.__name__ else "dW"


@pytest.mark.parametrize(
    ("form", "x", "w", "attributes", "symbolic"),
    [
        pytest.param(form, *case, symbolic, id=f"{form.__name__}-{name}{' symbolic' * symbolic}")
        for form, cases in FOR.items()
        for name, *case in cases
        for symbolic in ([False] if form in KNOWN_EXTENTS else [False, True])
    ],
)
def test_every_form_is_the_gradient(form, x, w, attributes, symbolic, rng):
    geometry = {key: value for key, value in attributes.items() if key != "group"}
    out = slide(x[1:], w[2:], **geometry).out
    feeds = {
        "dY": rng.standard_normal((2, w[0], *out)),
        "X": rng.standard_normal((2, *x)),
        "W": rng.standard_normal(w),
    }
    names = ["dX", ""] if target(form) == "dX" else ["", "dW"]
    model = ir.to_proto(lowered(model_of(x, w, attributes, names, symbolic=symbolic), by_form(form)))
    got = evaluate(model, feeds)
    dX, dW, _ = conv_grad(**feeds, **attributes)
    np.testing.assert_allclose(got[target(form)], {"dX": dX, "dW": dW}[target(form)], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("x", "w", "attributes", "data", "weights"),
    [
        # ResNet-50
        ((3, 224, 224), (64, 3, 7, 7), {"strides": [2, 2], "pads": [3] * 4}, "conv_transpose", "over_data"),
        ((64, 56, 56), (256, 64, 1, 1), {}, "conv", "product_by_image"),
        ((64, 56, 56), (64, 64, 3, 3), {"pads": [1] * 4}, "conv", "over_gradient"),
        ((128, 56, 56), (128, 128, 3, 3), {"strides": [2, 2], "pads": [1] * 4}, "conv_transpose", "over_data"),
        ((256, 56, 56), (512, 256, 1, 1), {"strides": [2, 2]}, "conv_transpose", "product_by_image"),
        ((512, 7, 7), (2048, 512, 1, 1), {}, "product", "product"),
        ((512, 7, 7), (512, 512, 3, 3), {"pads": [1] * 4}, "conv_transpose", "over_gradient"),
        # DenseNet-121
        ((128, 14, 14), (32, 128, 3, 3), {"pads": [1] * 4}, "conv", "over_gradient"),
        # Inception v2
        ((64, 56, 56), (192, 64, 3, 3), {"pads": [1] * 4}, "conv", "over_data"),
        ((192, 7, 7), (320, 192, 3, 3), {"pads": [1] * 4}, "conv_transpose", "over_gradient"),
        # ShuffleNet
        ((136, 28, 28), (136, 34, 1, 1), {"group": 4}, "conv", "product_by_image"),
        ((544, 7, 7), (544, 1, 3, 3), {"group": 544, "pads": [1] * 4}, "conv", "of_images"),
        ((136, 28, 28), (136, 1, 3, 3), {"group": 136, "pads": [1] * 4}, "conv", "of_rows"),
        ((8, 4, 400), (8, 1, 3, 3), {"group": 8, "pads": [1] * 4}, "conv", "of_kernel_elements"),
        # A row of the kernel that meets nothing but padding
        ((8, 1, 100), (8, 1, 3, 3), {"group": 8, "pads": [1] * 4}, "conv", "of_kernel_elements"),
        # More padding than Conv of dY could have
        ((8, 20, 20), (8, 8, 3, 3), {"pads": [3] * 4}, "conv_transpose", "over_data"),
        # X is mostly what few windows reach
        ((64, 40, 40), (8, 64, 21, 21), {}, "conv_transpose", "over_gradient"),
    ],
)
def test_the_form_that_is_taken(x, w, attributes, data, weights):
    taken = []
    with ExitStack() as stack:
        for form in FOR:
            record = wraps(form)(
                lambda *args, form=form, **more: taken.append(form.__name__) or form(*args, **more)
            )
            stack.enter_context(patch.object(sys.modules[form.__module__], form.__name__, record))
        lowered(model_of(x, w, attributes))
    assert taken == [weights, data]


@pytest.mark.parametrize(("x", "w", "attributes"), [pytest.param(*case, id=name) for name, *case in ANY])
def test_padding_of_conv_transpose_is_even(x, w, attributes):
    """ONNX Runtime's CUDA provider leaves nodes with uneven pads to the CPU."""
    nodes = lowered(model_of(x, w, attributes, ["dX", ""]), by_form(data_gradient.conv_transpose)).graph
    (node,) = (node for node in nodes if node.op_type == "ConvTranspose")
    pads = node.attributes["pads"].as_ints()
    assert pads[: len(pads) // 2] == pads[len(pads) // 2 :]
    assert "output_padding" not in node.attributes


@pytest.mark.parametrize("outputs", [("dX", "dW"), ("dX", "dW", "dB"), ("dX", "", "dB")], ids="-".join)
@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        pytest.param((64, 56, 56), (256, 64, 1, 1), {}, id="conv"),
        pytest.param((512, 7, 7), (2048, 512, 1, 1), {}, id="product"),
        pytest.param((4, 8, 8), (4, 4, 3, 3), {"strides": [2, 2]}, id="conv_transpose"),
    ],
)
def test_data_wait_for_the_parameters(x, w, attributes, outputs):
    """Else ONNX Runtime would keep dY for them until the end."""
    graph = lowered(model_of(x, w, attributes, outputs)).graph
    dX, *parameters = (next(v for v in graph.outputs if v.name == name) for name in outputs if name)
    before, waiting = set(), [dX]
    while waiting:
        value = waiting.pop()
        if value is not None and value not in before:
            before.add(value)
            waiting += value.producer().inputs if value.producer() else []
    assert before.issuperset(parameters)


def test_an_unknown_rank_is_refused():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]>\n'
        "g (float dY, float X, float W) => (float dX) { dX = com.microsoft.ConvGrad (dY, X, W) }"
    )
    model.graph.node[0].name = "node"
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    with pytest.raises(
        UnsupportedNodeError, match="its number of spatial dimensions is unknown; expected the attr"
    ):
        lowered(ir.from_proto(model))
