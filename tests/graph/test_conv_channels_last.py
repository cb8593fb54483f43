"""ConvChannelsLast without a kernel: its functions in ONNX Runtime, and the inference of its types."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import bngrad
from bngrad.errors import ModelError
from bngrad.graph.conv_channels_last import conv_channels_last
from bngrad.graph.fresh_names import Names
from bngrad.graph.node_makers import NodesAtEnd
from bngrad.opset.conv_channels_last import NAME
from bngrad.opset.domain import DOMAIN
from bngrad.validation.float64 import evaluate
from bngrad.validation.training_ops.convolution import conv

CASES = {
    "1-d": ((9, 4), (6, 3, 2), {"group": 2, "pads": [1, 2], "strides": [2]}),
    "2-d": ((7, 6, 3), (4, 3, 2, 3), {"pads": [0, 1, 2, 0], "strides": [2, 1], "dilations": [1, 2]}),
    "3-d": ((4, 5, 3, 2), (4, 1, 2, 3, 1), {"group": 2, "pads": [1, 0, 0, 0, 1, 1]}),
}
"""The shapes of a sample and of the weights, both with the channels last, and attributes."""
needs_overloads = pytest.mark.skipif(
    tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 27),
    reason="ONNX Runtime below 1.27 has no overloads",
)


def attributes_of(w, attributes):
    rank = len(w) - 2
    defaults = {"dilations": [1] * rank, "group": 1, "kernel_shape": list(w[1:-1]), "strides": [1] * rank}
    return defaults | {"pads": [0, 0] * rank} | attributes


def model_of(*cases, opset=17):
    """A node for each case, of x0 and w0, x1 and w1, ... ."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": opset}, name="test")
    model = ir.Model(graph, ir_version=8)
    emit = NodesAtEnd(graph, Names(model), "the")
    for index, (x, w, attributes) in enumerate(cases):
        values = [
            ir.Value(name=f"{name}{index}", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape))
            for name, shape in (("x", ["N", *x]), ("w", w))
        ]
        graph.inputs.extend(values)
        graph.outputs.append(conv_channels_last(emit, model, *values, **attributes_of(w, attributes)))
    return model


def expected_of(x, w, **attributes):
    first, second = (np.moveaxis(array, -1, 1) for array in (x, w))
    return np.moveaxis(conv(first, second, **attributes), 1, -1)


@needs_overloads
@pytest.mark.parametrize("opset", [15, 22])
def test_its_functions_are_conv(opset, rng):
    """Each number of spatial dimensions has one, in one model."""
    model = model_of(*CASES.values(), opset=opset)
    feeds, expected = {}, []
    for index, (x, w, attributes) in enumerate(CASES.values()):
        feeds[f"x{index}"] = rng.standard_normal((2, *x)).astype(np.float32)
        feeds[f"w{index}"] = rng.standard_normal(w).astype(np.float32)
        wide = (feeds[f"{name}{index}"].astype(np.float64) for name in "xw")
        expected.append(expected_of(*wide, **attributes_of(w, attributes)))
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    results = bngrad.session(model, "function").run(None, feeds)
    exact = evaluate(ir.to_proto(model), {name: array.astype(np.float64) for name, array in feeds.items()})
    for value, result, array in zip(model.graph.outputs, results, expected, strict=True):
        np.testing.assert_allclose(result, array, rtol=0, atol=1e-5)
        np.testing.assert_allclose(exact[value.name], array, rtol=0, atol=1e-12)
        assert tuple(value.shape)[1:] == array.shape[1:]


def test_nodes_of_one_rank_share_a_function():
    model = model_of(*CASES.values(), *CASES.values())
    assert list(model.functions) == [(DOMAIN, NAME, key) for key in ("1", "2", "3", "bngrad.requires")]


@needs_overloads
def test_onnx_runtime_without_overloads_refuses_it():
    """The last overload is the one that such a release takes for each call."""
    model = model_of(CASES["2-d"])
    model.graph[0].overload = "bngrad.requires"
    with pytest.raises(Exception, match="OnnxRuntime_1_27_or_newer"):
        bngrad.session(model, "function")


@pytest.mark.parametrize("case", CASES)
def test_types_are_inferred(case):
    """As the maker of the node has them."""
    x, w, attributes = CASES[case]
    model = model_of(CASES[case])
    declared = ir.to_proto(model)
    proto = onnx.ModelProto()
    proto.CopyFrom(declared)
    proto.graph.output[0].type.Clear()
    proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    proto = onnx.shape_inference.infer_shapes(proto, strict_mode=True)
    assert proto.graph.output[0] == declared.graph.output[0]
    shape = expected_of(np.zeros((1, *x)), np.zeros(w), **attributes_of(w, attributes)).shape
    assert [dim.dim_value for dim in declared.graph.output[0].type.tensor_type.shape.dim][1:] == list(shape[1:])


def test_unknown_sizes_stay_unknown():
    x, w, attributes = CASES["2-d"]
    model = model_of((("H", *x[1:]), w, attributes))
    batch, height, width, channels = model.graph.outputs[0].shape
    assert (batch, channels) == ("N", 4)
    assert height.value is None
    assert isinstance(width, int)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)


@pytest.mark.parametrize("unknown", ["X", "W", "XW"])
def test_unknown_types_stay_unknown(unknown):
    types = {"X": "float[N,7,6,3]", "W": "float[4,2,3,3]"}
    inputs = [f"{type_} {name}" for name, type_ in types.items() if name not in unknown]
    nodes = [f"{name} = other.Op(a)" for name in unknown]
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 17, "bngrad" : 1, "other" : 1]>
        g ({", ".join(["float[2] a", *inputs])}) => (float[B,C,D,E] z) {{ {" ".join(nodes)}
          y = bngrad.ConvChannelsLast <dilations = [1, 1], group: int = 1, kernel_shape = [2, 3],
                                       pads = [0, 0, 0, 0], strides = [1, 1]> (X, W)
          z = Identity(y) }}""")
    inferred = onnx.shape_inference.infer_shapes(model).graph.value_info
    if unknown == "W":
        (y,) = (value.type.tensor_type for value in inferred if value.name == "y")
        assert (y.elem_type, y.HasField("shape")) == (onnx.TensorProto.FLOAT, False)
    else:
        assert "y" not in {value.name for value in inferred}


@pytest.mark.parametrize("name", ["X", "W"])
def test_another_rank_is_refused(name):
    x, w, attributes = CASES["2-d"]
    model = ir.to_proto(model_of((x, w, attributes)))
    del model.graph.input["XW".index(name)].type.tensor_type.shape.dim[1]
    message = f"{name} has 3 dimensions; expected 4, for a kernel of 2"
    with pytest.raises(onnx.shape_inference.InferenceError, match=message):
        onnx.shape_inference.infer_shapes(model, strict_mode=True)


@pytest.mark.parametrize(("name", "values"), [("pads", [1, 1]), ("strides", [0, 1]), ("dilations", [1])])
def test_attributes_of_another_rank_are_refused(name, values):
    model = ir.to_proto(model_of(CASES["2-d"]))
    (attribute,) = (attribute for attribute in model.graph.node[0].attribute if attribute.name == name)
    attribute.ints[:] = values
    message = rf"{name} is \[{', '.join(map(str, values))}\], which does not fit a kernel of 2 dimensions"
    with pytest.raises(onnx.shape_inference.InferenceError, match=message):
        onnx.shape_inference.infer_shapes(model, strict_mode=True)


def test_another_function_of_its_name_is_refused():
    model = ir.to_proto(model_of(CASES["2-d"]))
    model.functions[0].attribute.remove("group")
    with pytest.raises(ModelError, match="ConvChannelsLast does not have the signature of that op; expected"):
        bngrad.rewrite(model)
