"""MaxPoolGrad and AveragePoolGrad lowered: to which op, where X's shape comes from, and refusals."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from bngrad.errors import UnsupportedNodeError
from bngrad.opset import ort_dialect  # noqa: F401 - registers the schemas of both
from bngrad.passes.lower.lower_training import LowerTrainingPass
from bngrad.validation.float64 import evaluate
from bngrad.validation.training_ops.pooling import average_pool, average_pool_grad, max_pool, max_pool_grad

HALF = {"kernel_shape": [2, 2], "strides": [2, 2]}
PADDED = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
AVERAGE = [
    # (id, spatial extents of X, attributes, what takes its place)
    ("tiles", (6, 8), HALF, "Resize"),
    ("whole image", (4, 5), {"kernel_shape": [4, 5], "strides": [3, 1]}, "Resize"),
    ("whole columns", (4, 6), {"kernel_shape": [4, 2], "strides": [1, 2]}, "Resize"),
    ("a remainder", (7, 8), HALF, "ConvTranspose"),
    ("gaps", (8, 8), {"kernel_shape": [2, 2], "strides": [4, 4]}, "ConvTranspose"),
    ("stride 1", (5, 6), {"kernel_shape": [3, 2]}, "AveragePool"),
    ("stride 1, padded", (5, 6), PADDED, "AveragePool"),
    ("stride 1, padding counts", (5, 6), {**PADDED, "count_include_pad": 1}, "AveragePool"),
    ("overlap", (7, 8), {**PADDED, "strides": [2, 2]}, "ConvTranspose"),
    ("dilated", (7, 8), {"kernel_shape": [2, 2], "dilations": [2, 3]}, "ConvTranspose"),
]
MAX = [
    ("tiles", (6, 8), HALF, "MaxUnpool"),
    ("tiles, padded", (5, 8), {**HALF, "pads": [1, 0, 0, 0]}, "MaxUnpool"),
    ("whole image", (4, 5), {"kernel_shape": [4, 5], "strides": [1, 1]}, "MaxUnpool"),
    ("a remainder", (7, 8), HALF, "ScatterElements"),
    ("overlap", (7, 8), {**PADDED, "strides": [2, 2]}, "ScatterElements"),
    ("dilated", (6, 8), {**HALF, "dilations": [2, 1]}, "ScatterElements"),
]


def model_of(op, attributes, extent=("H", "W"), *, forward="", element=TensorProto.FLOAT):
    """The gradient node of a pool named ``pool``, with or without that pool before it; X is [N, 2, *extent]."""
    shape = ["N", 2, *extent]
    x, dX = (helper.make_tensor_value_info(name, element, shape) for name in ("X", "dX"))
    dY = helper.make_tensor_value_info("dY", element, ["N", 2, "P", "Q"])
    indices = helper.make_tensor_value_info("indices", TensorProto.INT64, ["N", 2, "P", "Q"])
    inputs = [dY, indices] if op == "MaxPool" else [dY]
    names = [value.name for value in inputs]
    nodes = [helper.make_node(f"{op}Grad", names, ["dX"], "pool_Grad/Grad_0", **attributes)]
    if forward:
        inputs = [dY, x]
        nodes.insert(0, helper.make_node(op, ["X"], ["Y", "indices"][: len(names)], forward, **attributes))
    graph = helper.make_graph(nodes, "g", inputs, [dX])
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=8))


def lowered(model):
    return LowerTrainingPass()(model).model


def ops(model):
    return {node.op_type for node in model.graph}


@pytest.mark.parametrize(("extent", "attributes", "into"), [pytest.param(*c, id=name) for name, *c in AVERAGE])
def test_average_pool(extent, attributes, into, rng):
    model = lowered(model_of("AveragePool", attributes, extent))
    assert into in ops(model)
    dY = rng.standard_normal(average_pool(np.zeros((3, 2, *extent)), **attributes).shape)
    want = average_pool_grad(dY, input_sizes=extent, **attributes)
    got = evaluate(ir.to_proto(model), {"dY": dY})["dX"]
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("extent", "attributes", "into"), [pytest.param(*c, id=name) for name, *c in MAX])
def test_max_pool(extent, attributes, into, rng):
    model = lowered(model_of("MaxPool", attributes, extent))
    assert into in ops(model)
    Y, indices = max_pool(rng.standard_normal((3, 2, *extent)), **attributes)
    dY = rng.standard_normal(Y.shape)
    want = max_pool_grad(dY, indices, input_sizes=extent, **attributes)
    got = evaluate(ir.to_proto(model), {"dY": dY, "indices": indices})["dX"]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("element", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE])
def test_other_types_are_added_up(element):
    """MaxUnpool has no kernel for them."""
    assert "ScatterElements" in ops(lowered(model_of("MaxPool", HALF, (6, 8), element=element)))


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool"])
def test_the_forward_node_tells_the_shape(op, rng):
    X = rng.standard_normal((3, 2, 7, 9))
    dY = rng.standard_normal((3, 2, 3, 4))
    got = evaluate(ir.to_proto(lowered(model_of(op, HALF, forward="pool"))), {"dY": dY, "X": X})["dX"]
    if op == "AveragePool":
        want = average_pool_grad(dY, input_sizes=(7, 9), **HALF)
    else:
        want = max_pool_grad(dY, max_pool(X, **HALF)[1], input_sizes=(7, 9), **HALF)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)


def test_indices_tell_their_forward_node_whatever_its_name():
    assert "ScatterElements" in ops(lowered(model_of("MaxPool", HALF, forward="other")))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        pytest.param(model_of("AveragePool", HALF), "spatial shape of its output is unknown", id="average pool"),
        pytest.param(model_of("AveragePool", HALF, forward="other"), "is unknown", id="another name"),
        pytest.param(model_of("MaxPool", HALF), "spatial shape of its output is unknown", id="max pool"),
        pytest.param(
            model_of("MaxPool", {**HALF, "storage_order": 1}, (6, 8)), "storage_order = 1; expected 0", id="order"
        ),
    ],
)
def test_refusals(model, reason):
    before = [node.op_type for node in model.graph]
    with pytest.raises(UnsupportedNodeError, match=reason):
        lowered(model)
    assert [node.op_type for node in model.graph] == before


OTHER_WINDOWS = [
    ({"kernel_shape": [1, 1], "strides": [3, 3], "auto_pad": "SAME_UPPER"}, (7, 6)),
    ({"kernel_shape": [1, 1], "strides": [4, 1], "auto_pad": "SAME_LOWER"}, (8, 6)),
    ({"kernel_shape": [2, 3], "dilations": [1, 2], "auto_pad": "SAME_LOWER"}, (7, 6)),
]


@pytest.mark.parametrize(("attributes", "spatial"), OTHER_WINDOWS)
def test_refuses_windows_that_onnx_runtime_places_elsewhere(attributes, spatial):
    with pytest.raises(UnsupportedNodeError, match=r"auto_pad = SAME_\* and .*expected pads"):
        lowered(model_of("AveragePool", attributes, spatial))
