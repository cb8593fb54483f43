"""ResizeGrad of ORT's dialect, lowered, against NumPy; ORT-training has no kernel of it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from bngrad.errors import UnsupportedNodeError
from bngrad.passes.pipeline import rewrite
from bngrad.validation.float64 import evaluate
from pairwise import pairwise
from validation.training_op_cases import CASES, Case, values

EMPTY = np.zeros(0, np.float32)
WHOLE = np.array([1, 1, 2, 3], np.float32)
MORE = [
    Case("ResizeGrad", "whole", (values(2, 2, 8, 9), values(2, 2, 4, 3), None, WHOLE)),
    Case("ResizeGrad", "whole-shapes", (values(2, 2, 8, 9), values(2, 2, 4, 3))),
    Case(
        "ResizeGrad",
        "empty-roi-and-scales",
        (values(2, 2, 6, 2), values(2, 2, 4, 3), EMPTY, EMPTY),
        {"mode": "linear"},
    ),
    Case("ResizeGrad", "same", (values(2, 3), values(2, 3, seed=1))),
]
MINE = [*(case for case in CASES if case.op == "ResizeGrad"), *MORE]
SINCE_18 = {"antialias", "axes"}


def model_of(case, *, fixed, opset=18):
    """The case with constant scales and roi and known extents, or with nothing known but ranks."""
    initializers = {
        name: array for name, array in case.feeds.items() if name in {"x2", "x3"} and (fixed or not array.size)
    }
    inputs = [
        helper.make_tensor_value_info(
            name,
            onnx.TensorProto.FLOAT,
            array.shape if fixed else [f"{name}_{axis}" for axis in range(array.ndim)],
        )
        for name, array in case.feeds.items()
        if name not in initializers
    ]
    x = case.inputs[1]
    output = helper.make_tensor_value_info(
        "a", onnx.TensorProto.FLOAT, x.shape if fixed else [f"x1_{axis}" for axis in range(x.ndim)]
    )
    names = ["" if array is None else f"x{i}" for i, array in enumerate(case.inputs)]
    node = helper.make_node("ResizeGrad", names, ["a"], name="node", domain="com.microsoft", **case.attributes)
    constants = [numpy_helper.from_array(array, name) for name, array in initializers.items()]
    graph = helper.make_graph([node], "case", inputs, [output], constants)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def lower(model):
    return ir.to_proto(rewrite(ir.from_proto(model)).model)


@pairwise(case=MINE, opset=[16, 18, 21], fixed={"fixed": True, "symbolic": False})
def test_agrees_with_numpy(case, opset, fixed):
    if SINCE_18 & set(case.attributes):
        opset = max(opset, 18)
    session = ort.InferenceSession(lower(model_of(case, fixed=fixed, opset=opset)).SerializeToString())
    names = {value.name for value in session.get_inputs()}
    got = session.run(["a"], {name: array for name, array in case.feeds.items() if name in names})[0]
    want = evaluate(case.model(), case.feeds)["a"]
    np.testing.assert_allclose(got, want, rtol=0, atol=3e-6 * np.abs(want).max())


@pytest.mark.parametrize(
    ("what", "pools", "products"),
    [("whole", 1, 0), ("whole-shapes", 1, 0), ("default", 0, 4), ("shapes", 0, 2), ("same", 0, 0)],
)
def test_form(what, pools, products):
    (case,) = (case for case in MINE if case.what == what)
    types = [node.op_type for node in lower(model_of(case, fixed=True)).graph.node]
    assert (types.count("AveragePool"), types.count("MatMul")) == (pools, products)


def test_refuses_an_unknown_rank():
    model = model_of(MINE[0], fixed=False)
    for value in (*model.graph.input[:2], *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    with pytest.raises(UnsupportedNodeError, match="the type and rank of its X are not known"):
        lower(model)


def test_refuses_an_aspect_ratio_without_scales():
    case = Case("ResizeGrad", "ratio", (values(2, 4), values(2, 2)), {"keep_aspect_ratio_policy": "not_larger"})
    with pytest.raises(UnsupportedNodeError, match="keep_aspect_ratio_policy 'not_larger' and no scales"):
        lower(model_of(case, fixed=True))
