"""Detects nodes whose stated types contradict their op.

onnx's shape inference skips a node whose inputs do not match, and the type that the model states for its output
remains: a rule would rely on it. onnx's checker would refuse a gradient graph for such a node only at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir
from onnx import helper

from bngrad.graph.node_reader import constant_of
from bngrad.graph.subgraphs import captured_values

if TYPE_CHECKING:
    from collections.abc import Mapping

_SMALL = 64
"""The largest tensors whose values shape inference gets: axes, pads and similar."""


def contradiction(node: ir.Node, opset_imports: Mapping[str, int]) -> str | None:
    """Returns the error of onnx's inference for a node of its own ops, in one line; None if there is none.

    A model of only this node is inferred as by the checker.
    """
    values = {*(value for value in node.inputs if value is not None), *captured_values(node)}
    if node.domain or any(value.type is None for value in values):
        return None
    data = {value: tensor for value in values if (tensor := _data(value)) is not None}
    inputs = [ir.serde.serialize_value(value) for value in values - set(data)]
    graph = helper.make_graph([ir.to_proto(node)], "node", inputs, [], list(data.values()))
    imports = [helper.make_opsetid(*opset) for opset in opset_imports.items()]
    try:
        onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=imports), strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        return " ".join(str(error).split())
    return None


def _data(value: ir.Value) -> onnx.TensorProto | None:
    array = constant_of(value)
    if array is None or array.size > _SMALL or value.dtype not in (ir.DataType.INT64, ir.DataType.FLOAT):
        return None
    return onnx.numpy_helper.from_array(array, value.name)
