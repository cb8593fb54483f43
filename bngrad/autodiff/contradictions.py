"""What a model says of a node, against what its op allows.

onnx's shape inference passes over a node whose inputs do not go together, and what the model says of its output
stays: a rule would believe it. A graph that is made of such a node is refused in the end, by onnx's checker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir
from onnx import helper

from bngrad.graph.node_reader import constant_of

if TYPE_CHECKING:
    from collections.abc import Mapping

_SMALL = 64
"""The largest tensors whose values shape inference gets: axes, pads and similar."""


def contradiction(node: ir.Node, opset_imports: Mapping[str, int]) -> str | None:
    """What onnx's inference says against a node of its own ops, in one line; None where it has nothing to say.

    The node is all of a model, which is inferred as the checker does it.
    """
    read = {value for value in node.inputs if value is not None}
    if node.domain or any(value.type is None for value in read):
        return None
    data = {value: tensor for value in read if (tensor := _data(value)) is not None}
    inputs = [ir.serde.serialize_value(value) for value in read - set(data)]
    graph = helper.make_graph([ir.to_proto(node)], "node", inputs, [], list(data.values()))
    imports = [helper.make_opsetid(*each) for each in opset_imports.items()]
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
