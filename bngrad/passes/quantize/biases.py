"""Rounds the biases of an inference model, which are integers of 32 bits when it is deployed.

::

    BatchNormalization(Conv(x, W, B), scale, shift, mean, var)
    =  factor (Conv(x, W) + B + shift / factor - mean)              factor = scale / sqrt(var + epsilon)

An integer of the sum over x and W is the product of their scales. B + shift / factor - mean becomes a multiple of
it, by another B. That changes little, but it decides where an activation lies between two integers, and such
differences grow from layer to layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from bngrad.graph.constant_value import constant_value
from bngrad.graph.node_makers import NodesBefore
from bngrad.graph.node_reader import read_attribute, static_shape
from bngrad.passes.quantize.layers import batch_norm_after, channel_axis, is_plain, root

if TYPE_CHECKING:
    from bngrad.graph.fresh_names import Names

_DOUBLE = ir.DataType.DOUBLE


def round_bias(layer: ir.Node, names: Names) -> None:
    """Rounds the bias of a layer and of the batch norm after it, if its data and weight are rounded."""
    scales = [_scale(value) for value in layer.inputs[:2]]
    axis, shape = channel_axis(layer, 1), static_shape(layer.inputs[1])
    if None in scales or axis is None or shape is None or not is_plain(layer):
        return
    channels = (shape[axis],)
    old, batch_norm = layer.inputs[2] if len(layer.inputs) > 2 else None, batch_norm_after(layer)
    if layer.op_type == "MatMul" or (old is None and batch_norm is None):
        return
    if old is not None and _shape(old) != channels:
        return
    make = NodesBefore(layer, names, f"{layer.outputs[0].name}/bias")
    unit = make.op("Mul", *(make.cast(scale, _DOUBLE) for scale in scales if scale is not None))
    bias = make.constant(np.zeros(channels), _DOUBLE) if old is None else make.cast(old, _DOUBLE)
    total = bias
    if batch_norm is not None:
        scale, shift, mean, var = (
            make.cast(value, _DOUBLE) for value in batch_norm.inputs[1:5] if value is not None
        )
        epsilon = make.constant(read_attribute(batch_norm, "epsilon", 1e-5), _DOUBLE)
        factor = make.op("Div", scale, make.op("Sqrt", make.op("Add", var, epsilon)))
        zero, unity = (make.constant(number, _DOUBLE) for number in (0, 1))
        is_zero = make.op("Equal", factor, zero)  # then the bias makes no difference
        share = make.op("Div", make.op("Where", is_zero, zero, shift), make.op("Where", is_zero, unity, factor))
        total = make.op("Sub", make.op("Add", bias, share), mean)
    rounded = make.op("Mul", make.op("Round", make.op("Div", total, unit)), unit)
    new = make.op("Cast", make.op("Add", bias, make.op("Sub", rounded, total)), to=int(ir.DataType.FLOAT))
    layer.resize_inputs(3)
    layer.replace_input_with(2, new)


def _shape(bias: ir.Value) -> tuple[int, ...] | None:
    """Returns the shape of a bias, also of one that an exporter computes; None if it is not known."""
    if shape := static_shape(bias):
        return shape
    tensor = constant_value(bias)
    return None if tensor is None else tuple(tensor.numpy().shape)


def _scale(value: ir.Value | None) -> ir.Value | None:
    """Returns the scale of a value that is rounded; None if it is not."""
    node = None if value is None else root(value).producer()
    return node.inputs[1] if node is not None and node.op_type == "DequantizeLinear" else None
