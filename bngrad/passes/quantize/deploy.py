"""The deployed model: integers in place of rounded weights, and batch norms folded into their layers.

::

    Conv(x, W) -> BatchNormalization(scale, bias, mean, var)
    =>  Conv(x, DequantizeLinear(integers of W), DequantizeLinear(integers of the bias))

With factor = scale / sqrt(var + epsilon), the integers of a channel are those of W, negative where its factor is,
and their scale is that of W times |factor|. ONNX Runtime runs such a layer, with what is before and after it, as
one op in int8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx_ir as ir

from bngrad.errors import ModelError
from bngrad.graph.constant_value import constant_value, new_initializer
from bngrad.graph.fresh_names import Names
from bngrad.graph.name_messages import listed
from bngrad.graph.node_makers import NodesAfter, NodesBefore
from bngrad.graph.node_reader import read_attribute
from bngrad.graph.nodes import owner
from bngrad.passes.optimize.fold_affine import FoldAffinePass
from bngrad.passes.quantize.layers import batch_norm_after, channel_axis, is_layer, is_plain, moves_numbers
from bngrad.passes.quantize.quantization import SMALLEST_WEIGHT_SCALE, is_unseen, require_range, require_scale
from bngrad.passes.workarounds.present_keys import remove_unused_nodes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bngrad.passes.quantize.quantization import Quantization

    Array = NDArray[Any]

_LARGEST_BIAS = 2.0**30
"""The largest integer of a bias; a larger one gets a larger scale, and so do the weights of its channel."""


class UnseenRangeError(ModelError):
    """A tensor has no range yet, as before the first step."""


def deploy(model: ir.Model, quantization: Quantization) -> None:
    """Converts a model with rounded values to one that is quantized.

    Args:
        model: The result of `round_values` for inference, in which the ranges and weights have their final values;
            it is changed.
        quantization: What is quantized; the model may lack some of it.

    Raises:
        UnseenRangeError: A tensor has no range yet.
        InputError: A range or scale is not finite, 0 is not in a range, or a scale is negative.
    """
    graph = model.graph
    limits, scales = (
        {name: graph.initializers[name] for name in names.values() if name in graph.initializers}
        for names in (quantization.ranges, quantization.scales)
    )
    if unseen := [name for name, value in limits.items() if is_unseen(_array(value))]:
        raise UnseenRangeError(f"no step has set the range {listed(unseen)} yet; take a step before finalize")
    for name, value in limits.items():
        require_range(name, _array(value))
        for node, _ in list(value.uses()):
            if node.op_type == "Where":
                node.outputs[0].replace_all_uses_with(value)
    for name, value in scales.items():
        require_scale(name, _array(value))
    FoldAffinePass()(model)
    names = Names(model)
    _freeze_parameters(graph, names)
    for node in list(graph):
        if moves_numbers(node):
            _requantize(node, names)
        elif is_layer(node):
            _fold(node, names)
    _separate_weights(graph, names)
    remove_unused_nodes(model)


def _array(value: ir.Value) -> Array:
    """Returns the elements of an initializer."""
    tensor = constant_value(value)
    assert tensor is not None, "an initializer has a value"  # noqa: S101
    array: Array = tensor.numpy()
    return array


def _freeze_parameters(graph: ir.Graph, names: Names) -> None:
    """Makes initializers of scales, zero points and the integers of weights."""
    frozen: dict[ir.Value, ir.Value] = {}
    for node in [node for node in graph if node.op_type in ("QuantizeLinear", "DequantizeLinear")]:
        for index, value in enumerate(node.inputs):
            tensor = None if value is None else constant_value(value)
            if value is None or tensor is None or (node.op_type == "QuantizeLinear" and index == 0):
                continue
            if value not in frozen:
                frozen[value] = new_initializer(graph, names.fresh(f"{value.name}/value"), tensor)
            node.replace_input_with(index, frozen[value])


def _separate_weights(graph: ir.Graph, names: Names) -> None:
    """Gives each reader of a weight integers of its own: ONNX Runtime names those in uint8 after them."""
    for node in [node for node in graph if node.op_type == "DequantizeLinear"]:
        parts = [part for part in node.inputs if part is not None and part.is_initializer()]
        for reader, index in list(node.outputs[0].uses())[1:] if len(parts) == 3 else ():
            make = NodesBefore(reader, names, str(node.outputs[0].name))
            copies = [new_initializer(graph, names.fresh(str(x.name)), ir.tensor(_array(x))) for x in parts]
            own = make.op("DequantizeLinear", *copies, axis=read_attribute(node, "axis", 1))
            reader.replace_input_with(index, own)


class _Integers(NamedTuple):
    """An operand of a layer that is dequantized."""

    node: ir.Node
    """The DequantizeLinear."""
    scale: Array


def _integers(value: ir.Value | None) -> _Integers | None:
    node = None if value is None else value.producer()
    if node is None or node.op_type != "DequantizeLinear" or node.inputs[1] is None:
        return None
    scale = constant_value(node.inputs[1])
    return None if scale is None else _Integers(node, scale.numpy())


def _requantize(node: ir.Node, names: Names) -> None:
    """Gives the readers of numbers that a node moves the same numbers as integers."""
    source, value = _integers(node.inputs[0]), node.outputs[0]
    if source is None or source.scale.ndim:
        return
    uses, parameters = list(value.uses()), source.node.inputs[1:]
    make = NodesAfter(node, names, f"{value.name}/quantize")
    result = make.op("DequantizeLinear", make.op("QuantizeLinear", value, *parameters), *parameters)
    for reader, index in uses:
        reader.replace_input_with(index, result)


def _fold(layer: ir.Node, names: Names) -> None:
    """Folds the batch norm after a layer into it, and makes integers of its bias."""
    data, weight = (_integers(value) for value in layer.inputs[:2])
    axis = channel_axis(layer, 1)
    stored = None if weight is None else weight.node.inputs[0]
    if data is None or weight is None or stored is None or not stored.is_initializer():
        return
    if axis is None or data.scale.ndim or layer.op_type == "MatMul" or not is_plain(layer):
        return
    channels = len(weight.scale)
    bias = _bias(layer, channels)
    batch_norm = batch_norm_after(layer)
    if bias is None or (batch_norm is None and len(layer.inputs) < 3):
        return
    factor = np.ones(channels)
    if batch_norm is not None:
        tensors = [None if value is None else constant_value(value) for value in batch_norm.inputs[1:5]]
        parameters = [tensor.numpy().astype(np.float64) for tensor in tensors if tensor is not None]
        if len(parameters) < len(tensors):
            return
        shift, mean, var = parameters[1:]
        factor = parameters[0] / np.sqrt(var + read_attribute(batch_norm, "epsilon", 1e-5))
        bias = shift + (bias - mean) * factor
    _write(layer, names, (data, weight), factor, bias)
    if batch_norm is not None:
        _drop(batch_norm, layer)


def _bias(layer: ir.Node, channels: int) -> Array | None:
    """Returns the bias of each output channel of a layer; None if it is not one number for each."""
    value = layer.inputs[2] if len(layer.inputs) > 2 else None
    if value is None:
        return np.zeros(channels)
    tensor = constant_value(value)
    if tensor is None or (tensor.size > 1 and tensor.shape[-1] != tensor.size):
        return None
    return np.broadcast_to(tensor.numpy().astype(np.float64).reshape(-1), [channels])


def _write(
    layer: ir.Node, names: Names, operands: tuple[_Integers, _Integers], factor: Array, bias: Array
) -> None:
    """Gives a layer the integers of its weight times a factor, and of a bias."""
    data, weight = operands
    axis = channel_axis(layer, 1)
    assert axis is not None and weight.node.inputs[0], "see `_fold`"  # noqa: S101, PT018
    integers = _array(weight.node.inputs[0])
    exact = weight.scale.astype(np.float64) * np.abs(factor)
    by_bias = np.abs(bias) / (data.scale.astype(np.float64) * _LARGEST_BIAS)
    wide = np.maximum(np.maximum(exact, by_bias), SMALLEST_WEIGHT_SCALE)
    shape = [-1 if place == axis else 1 for place in range(integers.ndim)]
    signed = integers * (np.sign(factor) * exact / wide).reshape(shape)
    scale = wide.astype(np.float32)
    of_bias = (data.scale * scale).astype(np.float32)
    layer.resize_inputs(max(len(layer.inputs), 3))
    _store(layer, 1, names, np.rint(signed).astype(np.int8), scale, axis)
    _store(layer, 2, names, np.rint(bias / of_bias.astype(np.float64)).astype(np.int32), of_bias, 0)


def _store(layer: ir.Node, index: int, names: Names, integers: Array, scale: Array, axis: int) -> None:
    """Stores an operand of a layer as integers, with a scale for each channel."""
    called = f"{layer.outputs[0].name}/{('data', 'weight', 'bias')[index]}"
    parts = {"integers": integers, "scale": scale, "zero_point": np.zeros(len(scale), integers.dtype)}
    values = [
        new_initializer(owner(layer), names.fresh(f"{called}_{part}"), ir.tensor(array))
        for part, array in parts.items()
    ]
    make = NodesBefore(layer, names, called)
    layer.replace_input_with(index, make.op("DequantizeLinear", *values, axis=axis))


def _drop(batch_norm: ir.Node, layer: ir.Node) -> None:
    """Removes a batch norm; the result of its layer takes its place and name."""
    old, new = batch_norm.outputs[0], layer.outputs[0]
    name, old.name = old.name, None
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    new.name, new.shape, new.type = name, old.shape, old.type
