"""The reason why onnx's version converter fails, which it reports as a failed assertion in its C++."""

from __future__ import annotations

import re

import onnx

from bngrad.graph.nodes import node_text

_ASSERTION = re.compile(r".*: Assertion `.*` failed: (?P<reason>.+)", re.DOTALL)


def conversion_message(model: onnx.ModelProto, error: Exception, minimum: int) -> str:
    """Returns the reason why a model cannot be converted, with the name of the node.

    Args:
        model: The model that was passed to the converter.
        error: The error that the converter raised.
        minimum: The opset to convert to.
    """
    (version,) = (imported.version for imported in model.opset_import if not imported.domain)
    node = _culprit(model, minimum)
    where = "" if node is None else f"{node_text(node.op_type, node.name, node.output)}: "
    return (
        f"the model imports ai.onnx {version} and cannot be raised to {minimum}: {where}{_reason(error)}; "
        f"export it with opset {minimum} or newer"
    )


def _reason(error: Exception) -> str:
    """The converter's message, without the position in its sources."""
    text = str(error).strip()
    match = _ASSERTION.fullmatch(text)
    return (match["reason"] if match else text).strip().splitlines()[0].rstrip(".")


def _culprit(model: onnx.ModelProto, minimum: int) -> onnx.NodeProto | None:
    """The first node that cannot be converted by itself either; None if each can."""
    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except Exception:  # noqa: BLE001 - its messages are those of C++ as well
        graph = model.graph
    types = {info.name: info for info in (*graph.value_info, *graph.input, *graph.output)}
    values = {tensor.name: tensor for tensor in graph.initializer}
    node: onnx.NodeProto
    for node in graph.node:
        single = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
        single.graph.name = "one"
        single.graph.node.append(node)
        for name in dict.fromkeys(node.input):
            if name in values:
                single.graph.initializer.append(values[name])
            if name in types or name in values:
                single.graph.input.append(types.get(name) or _typed(values[name]))
        single.graph.output.extend(types.get(name, onnx.ValueInfoProto(name=name)) for name in node.output if name)
        try:
            onnx.version_converter.convert_version(single, minimum)
        except Exception:  # noqa: BLE001
            return node
    return None


def _typed(tensor: onnx.TensorProto) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
