"""Chooses what is quantized: operands and results of convolutions and matrix products, as they are deployed.

::

    x -> Q, DQ -> Conv(x, Q, DQ of W) -> BatchNormalization -> Relu -> Q, DQ -> MaxPool -> ...

The integers of a result stand after the batch norm and the Relu that become a part of the layer. Ops that only
move numbers, such as MaxPool and Reshape, need no others after them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.errors import ModelError, UnsupportedNodeError
from bngrad.graph.fresh_names import node_names
from bngrad.graph.node_reader import static_shape
from bngrad.graph.nodes import describe
from bngrad.passes.quantize.layers import (
    LAYERS,
    activation_after,
    batch_norm_after,
    channel_axis,
    is_batch_norm,
    is_layer,
    root,
)
from bngrad.passes.quantize.quantization import Quantization

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bngrad.graph.fresh_names import Names
    from bngrad.options import Quantize

_QUANTIZERS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")


def plan(
    model: ir.Model, activations: Quantize, names: Names, *, symmetric: bool, learned: bool = False
) -> Quantization:
    """Returns what is to be quantized in a model.

    Args:
        model: The model as it is deployed, in inference mode and with types.
        activations: The type of activations.
        names: The source of names for the ranges.
        symmetric: Whether the zero point of activations is the middle of the integers.
        learned: Whether the scales of activations are weights.

    Raises:
        ModelError: It has no layer that can be quantized, or is quantized already.
        UnsupportedNodeError: A layer has another type than float, or a weight of unknown shape.
    """
    graph = model.graph
    fixed = _fixed_values(graph)
    weights: dict[str, tuple[int, ...]] = {}
    tensors: dict[str, None] = {}
    for node in graph:
        if node.domain == "" and node.op_type in _QUANTIZERS:
            raise ModelError(f"the model is quantized already: it has {describe(node)}; expected a model in float")
        if not is_layer(node) or not _takes_data(node, fixed):
            continue
        fixed_operands = tuple(index for index in (0, 1) if node.inputs[index] in fixed)
        _require_float(node, fixed_operands)
        weights[str(node.outputs[0].name)] = fixed_operands
        sources = [root(value) for value in node.inputs[:2] if value is not None and value not in fixed]
        tensors |= dict.fromkeys(str(value.name) for value in (*sources, _result(node, symmetric=symmetric)))
    if not weights:
        raise ModelError(f"the model has no layer to quantize; expected one of {', '.join(LAYERS)} on its data")
    ranges = {tensor: names.fresh(f"{tensor}/range") for tensor in tensors}
    scales = {tensor: names.fresh(f"{tensor}/scale") for tensor in tensors} if learned else {}
    return Quantization(activations, symmetric, ranges, weights, scales)


def float_batch_norms(model: ir.Model) -> list[str]:
    """Returns the names of the batch norms that are not folded into a layer."""
    folded = {batch_norm_after(node) for node in model.graph if is_layer(node)}
    names = node_names(model)
    return [name for node, name in names.items() if is_batch_norm(node) and node not in folded]


def _takes_data(node: ir.Node, fixed: set[ir.Value]) -> bool:
    data, weight = node.inputs[:2]
    if data is None or weight is None or (data in fixed and weight in fixed):
        return False
    return node.op_type != "Conv" or (weight in fixed and data not in fixed)


def _result(layer: ir.Node, *, symmetric: bool) -> ir.Value:
    """Returns the value that a layer gives as integers."""
    batch_norm = batch_norm_after(layer)
    value = (layer if batch_norm is None else batch_norm).outputs[0]
    activation = None if symmetric else activation_after(value)
    return value if activation is None else activation.outputs[0]


def _fixed_values(graph: ir.Graph) -> set[ir.Value]:
    """Returns the values that depend on no data: initializers, and what is computed only from them."""
    fixed = set(graph.initializers.values())
    for node in graph:
        inputs = [value for value in node.inputs if value is not None]
        if node.op_type == "Constant" or (inputs and all(value in fixed for value in inputs)):
            fixed |= set(node.outputs)
    return fixed


def _require_float(layer: ir.Node, weights: tuple[int, ...]) -> None:
    for value in _operands(layer):
        if value.dtype != ir.DataType.FLOAT:
            dtype = "of an unknown type" if value.dtype is None else value.dtype.name.lower()
            raise UnsupportedNodeError(
                f"{describe(layer)} cannot be quantized: {value.name!r} is {dtype}; expected float"
            )
    for index in weights:
        if channel_axis(layer, index) is not None and static_shape(layer.inputs[index]) is None:
            raise UnsupportedNodeError(f"{describe(layer)} cannot be quantized: its weight has no fixed shape")


def _operands(layer: ir.Node) -> Iterator[ir.Value]:
    yield from (value for value in layer.inputs[:2] if value is not None)
    yield layer.outputs[0]
