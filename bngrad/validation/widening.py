"""Converts a model to float64: replaces narrower float types by double wherever they occur in the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from bngrad.graph.batch_norms import SUPPORTED_DTYPES

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

    Array = NDArray[Any]

_TYPE_ATTRIBUTES = {
    "Bernoulli": "dtype",
    "BlackmanWindow": "output_datatype",
    "Cast": "to",
    "EyeLike": "dtype",
    "HammingWindow": "output_datatype",
    "HannWindow": "output_datatype",
    "MelWeightMatrix": "output_datatype",
    "RandomNormal": "dtype",
    "RandomNormalLike": "dtype",
    "RandomUniform": "dtype",
    "RandomUniformLike": "dtype",
    "SequenceEmpty": "dtype",
}
"""The attributes of ONNX ops that specify an element type."""

_FLOAT_BY_DEFAULT = {
    *("BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix"),
    *("RandomNormal", "RandomUniform", "SequenceEmpty"),
}
"""The ops whose output is float32 if the attribute is absent."""


def to_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a copy of a model in which narrower floats are replaced by double; see `widened`."""
    return ir.to_proto(widened(model))


def widened(model: onnx.ModelProto) -> ir.Model:
    """Returns a copy of a model in which float, float16 and bfloat16 are replaced by double.

    This applies to initializers, constants, types of values and attributes that specify a type, also in subgraphs.
    Numeric attributes, such as epsilon, keep their float32 value. Functions are inlined first, because their
    constants may depend on the call. The default domain is renamed to "".
    """
    result = ir.from_proto(model)
    InlinePass()(result)
    result.functions.clear()  # none is called any more, and onnx's evaluator would look for the ops of all
    if "ai.onnx" in result.opset_imports:
        result.opset_imports[""] = result.opset_imports.pop("ai.onnx")
    for graph in result.graphs():
        for value in (*graph.inputs, *graph.initializers.values()):
            _widen_value(value)
        for node in graph:
            if node.domain == "ai.onnx":
                node.domain = ""
            _widen_node(node)
            for value in node.outputs:
                _widen_value(value)
    return result


def widened_array(array: Array) -> Array:
    """Returns a float array as float64, and other arrays unchanged."""
    array = np.asarray(array)
    return array.astype(np.float64) if _is_narrow(ir.DataType.from_numpy(array.dtype)) else array


def _is_narrow(dtype: ir.DataType | int | None) -> bool:
    return dtype in SUPPORTED_DTYPES and dtype != ir.DataType.DOUBLE


def _widen_value(value: ir.Value) -> None:
    if value.const_value is not None:
        value.const_value = _widen_tensor(value.const_value)
    if value.type is not None:
        value.type = _widen_type(value.type)


def _widen_type(type_: ir.TypeProtocol) -> ir.TypeProtocol:
    if isinstance(type_, ir.SequenceType | ir.OptionalType):
        return type(type_)(_widen_type(type_.elem_type))
    if isinstance(type_, ir.TensorType | ir.SparseTensorType) and _is_narrow(type_.dtype):
        return type(type_)(ir.DataType.DOUBLE)
    return type_


def _widen_tensor(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    if not _is_narrow(tensor.dtype):
        return tensor
    return ir.tensor(tensor.numpy().astype(np.float64), name=tensor.name)


def _widen_node(node: ir.Node) -> None:
    for attribute in list(node.attributes.values()):
        if attribute.type == ir.AttributeType.TENSOR:
            _set(node, ir.AttrTensor(attribute.name, _widen_tensor(attribute.as_tensor())))
    if node.domain != "":
        return
    if node.op_type == "Constant":
        for name in ("value_float", "value_floats"):
            if name in node.attributes:
                # The float32 value that ONNX stores, not the decimal number it was written as.
                number = np.asarray(node.attributes.pop(name).value, np.float32).astype(np.float64)
                _set(node, ir.AttrTensor("value", ir.tensor(number)))
    elif node.op_type == "ConstantOfShape" and "value" not in node.attributes:
        _set(node, ir.AttrTensor("value", ir.tensor(np.zeros(1))))
    elif node.op_type in _TYPE_ATTRIBUTES:
        name = _TYPE_ATTRIBUTES[node.op_type]
        default = ir.DataType.FLOAT if node.op_type in _FLOAT_BY_DEFAULT else None
        if _is_narrow(node.attributes.get_int(name, default)):
            _set(node, ir.AttrInt64(name, ir.DataType.DOUBLE))


def _set(node: ir.Node, attribute: ir.Attr) -> None:
    node.attributes[attribute.name] = attribute
