"""Sums over dimensions, and shapes, in TensorFlow's gradients.

::

    BiasAddGrad(out_backprop) {data_format} -> the sum over all dimensions but the channels
    ShapeN(x, ...) {out_type} -> the shape of each
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.node_reader import read_attribute
from bngrad.opset.op_attributes import ANY
from bngrad.passes.imports.tensorflow.rule import Rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.passes.lower.site import Site


def bias_refusal(node: ir.Node) -> str | None:
    """Returns the reason why the gradient of a bias cannot be rewritten; None if it can."""
    value = node.inputs[0]
    if value is None or value.shape is None:
        return "the number of its dimensions is unknown; expected a model that shape inference can read"
    least = 2 if read_attribute(node, "data_format", "NHWC") == "NHWC" else 3
    if len(value.shape) < least:
        return f"its out_backprop has {len(value.shape)} dimensions; expected {least} or more"
    return None


def bias_add_grad(site: Site) -> Sequence[ir.Value]:
    """The sum over all dimensions except the last, or with NCHW except dimension 1."""
    dY = site.x(0)
    rank = len(dY.shape or ())
    channel = rank - 1 if site.attribute("data_format", "NHWC") == "NHWC" else 1
    axes = [axis for axis in range(rank) if axis != channel]
    return [site.reduce("ReduceSum", dY, axes, keepdims=False)]


def shapes_refusal(node: ir.Node) -> str | None:
    """Returns the reason why a ShapeN cannot be rewritten; None if it can."""
    if len(node.inputs) != len(node.outputs) or None in node.inputs:
        return f"it has {len(node.inputs)} inputs and {len(node.outputs)} outputs; expected as many"
    dtype = read_attribute(node, "out_type", int(ir.DataType.INT32))
    if dtype not in (ir.DataType.INT32, ir.DataType.INT64):
        return f"its out_type is {dtype}; expected 6 (int32) or 7 (int64)"
    return None


def shape_n(site: Site) -> Sequence[ir.Value]:
    """A Shape of each input."""
    dtype = site.attribute("out_type", int(ir.DataType.INT32))
    shapes = [site.op("Shape", site.x(index)) for index in range(len(site.node.inputs))]
    return shapes if dtype == ir.DataType.INT64 else [site.op("Cast", shape, to=dtype) for shape in shapes]


RULES = {
    "BiasAddGrad": Rule(bias_add_grad, bias_refusal, {"data_format": ("NHWC", "NCHW")}, ("out_backprop",)),
    "ShapeN": Rule(shape_n, shapes_refusal, {"N": ANY, "out_type": ANY}),
}
