"""The layers that a batch norm can be folded into: their weights, and the reasons why others cannot take it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bngrad.graph.constant_value import constant_tensor, constant_value
from bngrad.graph.node_reader import read_attribute
from bngrad.graph.nodes import describe, known_rank

if TYPE_CHECKING:
    import onnx_ir as ir
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_PRODUCTS = ("Gemm", "MatMul")
_LAYERS = ("Conv", "ConvTranspose", *_PRODUCTS)


class NotFoldableError(Exception):
    """The reason why a batch norm cannot be folded in a direction."""


class FoldableLayer(NamedTuple):
    """A layer, its weight, and the bias of each output channel."""

    node: ir.Node
    weight: Array
    bias: Array
    add: ir.Node | None
    """The Add of a bias after it."""


def layer_before(node: ir.Node) -> FoldableLayer:
    """Returns the layer that computes the data of a batch norm, and nothing else."""
    x = node.inputs[0]
    maker = None if x is None else x.producer()
    if x is None or maker is None:
        raise NotFoldableError("no node computes its input")
    add, layer = None, maker
    operand = constant_operand(maker)
    if operand is not None and (data := maker.inputs[1 - operand]) is not None:
        add, layer = maker, data.producer() or maker
    if layer.graph is not node.graph or layer.domain != "" or layer.op_type not in _LAYERS:
        raise NotFoldableError(
            f"{describe(layer)} computes its input, and not a {', '.join(_LAYERS[:-1])} or MatMul"
        )
    for between in (layer, *([add] if add is not None else [])):
        _require_one_reader(between.outputs[0])
    weight = _weight_of(layer)
    rank = known_rank([x])
    if layer.op_type == "MatMul" and rank != 2:
        got = "unknown rank" if rank is None else f"{rank} dimensions"
        raise NotFoldableError(f"{describe(layer)} has channels last, and data of {got}; expected 2")
    channels = channels_of(layer, weight)
    bias = _bias_of(layer)
    if add is not None and operand is not None:
        of_layer = known_rank(layer.outputs)
        if rank is None or of_layer != rank:
            raise NotFoldableError(f"{describe(add)} may add dimensions to the data")
        bias = bias + _per_channel(add, operand, channels, rank)
    return FoldableLayer(layer, weight, np.broadcast_to(bias, np.broadcast_shapes(bias.shape, (channels,))), add)


def layer_after(node: ir.Node) -> FoldableLayer:
    """Returns the layer that alone reads a batch norm, if it folds exactly."""
    y = node.outputs[0]
    _require_one_reader(y)
    ((layer, index),) = y.uses()
    if layer.graph is not node.graph or layer.domain != "" or layer.op_type not in ("Conv", *_PRODUCTS) or index:
        raise NotFoldableError(f"{describe(layer)} reads it, and not a Conv, Gemm or MatMul as data")
    if layer.op_type == "Conv" and _pads(layer):
        raise NotFoldableError(f"{describe(layer)} after it pads its data with zeros, which it does not normalize")
    if read_attribute(layer, "transA", 0):
        raise NotFoldableError(f"{describe(layer)} after it transposes its data")
    rank = known_rank([y])
    if layer.op_type == "MatMul" and rank != 2:
        got = "unknown rank" if rank is None else f"{rank} dimensions"
        raise NotFoldableError(
            f"{describe(layer)} after it takes channels last, and has data of {got}; expected 2"
        )
    weight = _weight_of(layer)
    return FoldableLayer(layer, weight, _bias_of(layer), None)


def constant_operand(node: ir.Node) -> int | None:
    """Returns the index of the operand of an Add that is constant; None for other nodes."""
    if (node.domain, node.op_type) != ("", "Add"):
        return None
    return next((i for i, value in enumerate(node.inputs) if value is not None and constant_tensor(value)), None)


def channels_of(layer: ir.Node, weight: Array) -> int:
    """Returns the number of output channels of a layer."""
    if layer.op_type == "Conv":
        return int(weight.shape[0])
    if layer.op_type == "ConvTranspose":
        return int(weight.shape[1] * read_attribute(layer, "group", 1))
    return int(weight.shape[0 if read_attribute(layer, "transB", 0) else 1])


def along_channels(vector: Array, layer: ir.Node, weight: Array, side: int) -> Array:
    """Returns a number for each channel, as an array that broadcasts to a weight.

    Args:
        vector: The numbers.
        layer: The layer.
        weight: Its weight.
        side: The channels: 0 for those of the input, 1 for those of the output.
    """
    if layer.op_type in _PRODUCTS:
        axis = 1 - side if read_attribute(layer, "transB", 0) else side
        return vector.reshape([-1 if d == axis else 1 for d in range(2)])
    ones = (1,) * (weight.ndim - 2)
    groups = int(read_attribute(layer, "group", 1))
    # The first dimension of a weight has the channels of all groups, the second one those of a group.
    if (layer.op_type == "Conv") == (side == 1):
        return vector.reshape(-1, 1, *ones)
    return np.repeat(vector.reshape(groups, -1), weight.shape[0] // groups, axis=0).reshape(
        weight.shape[0], -1, *ones
    )


def _require_one_reader(value: ir.Value) -> None:
    if value.is_graph_output():
        raise NotFoldableError(f"{value.name!r} is an output of the model")
    if len(value.uses()) != 1:
        raise NotFoldableError(f"{value.name!r} is read by {len(value.uses())} nodes; expected only one")


def _weight_of(layer: ir.Node) -> Array:
    value = layer.inputs[1]
    tensor = None if value is None else constant_tensor(value)
    if value is None or tensor is None:
        raise NotFoldableError(f"the weight of {describe(layer)} is computed; expected an initializer")
    if sum(reader.op_type != "Shape" for reader, _ in value.uses()) != 1 or value.is_graph_output():
        raise NotFoldableError(
            f"the weight {value.name!r} of {describe(layer)} is read by other nodes, too, or is an output"
        )
    if layer.op_type == "MatMul" and len(tensor.shape) != 2:
        raise NotFoldableError(f"the weight of {describe(layer)} has {len(tensor.shape)} dimensions; expected 2")
    return tensor.numpy().astype(np.float64)


def _bias_of(layer: ir.Node) -> Array:
    """Returns what a layer adds: a number for each channel, of a Gemm also for each row."""
    value = layer.inputs[2] if len(layer.inputs) > 2 else None
    if value is None:
        return np.zeros(1)
    tensor = constant_value(value)
    if tensor is None:
        raise NotFoldableError(f"the bias of {describe(layer)} is computed from data; expected a constant")
    array = tensor.numpy().astype(np.float64)
    return read_attribute(layer, "beta", 1.0) * array if layer.op_type == "Gemm" else array


def _per_channel(add: ir.Node, operand: int, channels: int, rank: int) -> Array:
    """Returns what an Add adds to each channel."""
    value = add.inputs[operand]
    tensor = None if value is None else constant_tensor(value)
    array = np.zeros(1) if tensor is None else tensor.numpy().astype(np.float64)
    if array.size == 1:
        return array.reshape(1)
    if array.ndim <= rank:
        shape = (1,) * (rank - array.ndim) + array.shape
        if shape == (1, channels, *(1,) * (rank - 2)):
            return array.reshape(-1)
    raise NotFoldableError(f"{describe(add)} adds more than a number for each channel")


def _pads(layer: ir.Node) -> bool:
    """Tests whether a Conv may pad its data."""
    mode = read_attribute(layer, "auto_pad", "NOTSET")
    return any(read_attribute(layer, "pads", [0])) if mode == "NOTSET" else mode != "VALID"
