"""The layers that run in int8, and the nodes around them that become a part of theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.graph.constant_value import constant_value
from bngrad.graph.node_reader import read_attribute

if TYPE_CHECKING:
    import onnx_ir as ir

LAYERS = ("Conv", "Gemm", "MatMul")
_SAME_NUMBERS = ("Identity", "Dropout", "Flatten", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "MaxPool")
"""Ops whose output has only numbers of input 0; a Dropout has it in inference."""


def is_layer(node: ir.Node) -> bool:
    """Returns whether a node has a kernel for int8."""
    return node.domain == "" and node.op_type in LAYERS


def moves_numbers(node: ir.Node) -> bool:
    """Returns whether the output of a node has only numbers of its first input."""
    return node.domain == "" and node.op_type in _SAME_NUMBERS


def root(value: ir.Value) -> ir.Value:
    """Returns the value that the numbers of another one come from."""
    while (node := value.producer()) is not None and moves_numbers(node):
        if node.inputs[0] is None or value is not node.outputs[0] or node.inputs[0].dtype != value.dtype:
            break
        value = node.inputs[0]
    return value


def channel_axis(layer: ir.Node, index: int) -> int | None:
    """Returns the axis of the output channels of an operand; None if its elements have one scale."""
    value = layer.inputs[index]
    if index != 1 or value is None or value.shape is None:
        return None
    if layer.op_type == "Conv":
        return 0
    if layer.op_type == "Gemm":
        return 0 if read_attribute(layer, "transB", 0) else 1
    return 1 if len(value.shape) == 2 else None


def sole_reader(value: ir.Value) -> ir.Node | None:
    """Returns the node that reads a value as its first input; None if more is done with the value."""
    uses = value.uses()
    if len(uses) != 1 or value.is_graph_output():
        return None
    ((node, index),) = uses
    return node if index == 0 and node.graph is value.graph else None


def is_plain(layer: ir.Node) -> bool:
    """Returns whether a layer adds its bias, if it has one, to its product without factors."""
    return layer.op_type != "Gemm" or all(read_attribute(layer, name, 1.0) == 1 for name in ("alpha", "beta"))


def is_batch_norm(node: ir.Node) -> bool:
    """Returns whether a node is ONNX's batch norm."""
    return (node.domain, node.op_type) == ("", "BatchNormalization")


def batch_norm_after(layer: ir.Node) -> ir.Node | None:
    """Returns the batch norm in inference mode that can be folded into a layer; None if there is none."""
    node = sole_reader(layer.outputs[0])
    if node is None or not is_batch_norm(node) or not is_plain(layer):
        return None
    return node if layer.op_type != "MatMul" else None


def activation_after(value: ir.Value) -> ir.Node | None:
    """Returns the Relu or Clip from 0 that rounding to integers from the zero point on does; None if none is."""
    node = sole_reader(value)
    if node is None or node.domain != "":
        return None
    if node.op_type == "Clip":
        limit = node.inputs[1] if len(node.inputs) > 1 else None
        low = None if limit is None or limit.is_graph_input() else constant_value(limit)
        return node if low is not None and low.size == 1 and float(low.numpy().flat[0]) == 0 else None
    return node if node.op_type == "Relu" else None
