"""Folds a batch norm in inference mode into the layer before it, or into the one after it.

With gain a = scale / sqrt(var + epsilon) and shift t = bias - mean * a, both in double::

    a * Conv(x, W, B) + t   =  Conv(x, a * W, a * B + t)
    Conv(a * x + t, W, B)   =  Conv(x, W * a, B + sum of W * t)        without padding, whose zeros t would shift

and the same of ConvTranspose (before the batch norm), Gemm and MatMul, also with an Add of a bias after the layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx_ir as ir

from bngrad.errors import ModelError
from bngrad.graph.batch_norms import is_per_element, is_training_batch_norm
from bngrad.graph.constant_value import constant_tensor, constant_value, new_initializer
from bngrad.graph.node_makers import NodesAfter
from bngrad.graph.node_reader import read_attribute
from bngrad.graph.nodes import describe, known_rank, owner, remove

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bngrad.graph.fresh_names import Names

    Array = NDArray[np.float64]

FOLDED = "bngrad.folded"
"""The key in the metadata of a layer for the name of the batch norm that was folded into it."""

_PRODUCTS = ("Gemm", "MatMul")
_LAYERS = ("Conv", "ConvTranspose", *_PRODUCTS)


class NotFoldableError(Exception):
    """The reason why a batch norm cannot be folded in a direction."""


class _Layer(NamedTuple):
    """A layer, its weight, and the bias of each output channel."""

    node: ir.Node
    weight: Array
    bias: Array
    add: ir.Node | None
    """The Add of a bias after it."""


def fold(node: ir.Node, name: str, names: Names) -> ir.Node:
    """Folds a batch norm of a model with known types; returns the layer that it was folded into.

    Args:
        node: The batch norm; it is removed.
        name: Its name in messages.
        names: The source of new names.

    Raises:
        NotFoldableError: It cannot be folded; nothing was changed.
        ModelError: The folded weights do not fit into their type.
    """
    gain, shift = _gain_and_shift(node)
    try:
        layer = _before(node)
    except NotFoldableError as before:
        try:
            layer = _after(node)
        except NotFoldableError as after:
            raise NotFoldableError(f"{before}; {after}") from None
        _fold_after(node, layer, gain, shift, names)
    else:
        weight = layer.weight * _along(gain, layer.node, layer.weight, 1)
        _put(layer, weight, layer.bias * gain + shift, names)
        last = layer.node if layer.add is None or layer.node.op_type != "MatMul" else layer.add
        if last is layer.node and layer.node.op_type == "MatMul":
            last = _add_bias(layer.node, layer.bias * gain + shift, names)
        _take_over(node.outputs[0], last)
        remove([node] if layer.add in (None, last) else [node, layer.add])
    layer.node.metadata_props[FOLDED] = name
    return layer.node


def type_constants(graph: ir.Graph) -> None:
    """Replaces CastLike of a constant by Cast: PyTorch's exporter writes a bias of 0 in the type of the data."""
    for node in graph:
        if (node.domain, node.op_type) != ("", "CastLike"):
            continue
        value, like = node.inputs
        if value is not None and like is not None and like.dtype is not None and constant_value(value) is not None:
            node.resize_inputs(1)
            node.op_type, node.attributes["to"] = "Cast", ir.AttrInt64("to", int(like.dtype))


def _gain_and_shift(node: ir.Node) -> tuple[Array, Array]:
    if is_training_batch_norm(node):
        raise NotFoldableError(
            "it is in training mode, in which the statistics of the batch are used; pass --mode frozen "
            "(mode='frozen'), or put the model into inference mode with bngrad finalize"
        )
    if is_per_element(node):
        raise NotFoldableError("it has spatial = 0, with statistics of each element; expected those of channels")
    if used := [value for value in node.outputs[1:] if value.uses() or value.is_graph_output()]:
        raise NotFoldableError(f"its output {used[0].name!r} is used; expected only its first output")
    arrays = []
    for value in node.inputs[1:5]:
        tensor = None if value is None else constant_value(value)
        if tensor is None:
            got = "" if value is None else f" {value.name!r}"
            raise NotFoldableError(f"its input{got} is no constant of the model")
        arrays.append(tensor.numpy().astype(np.float64))
    scale, bias, mean, var = arrays
    with np.errstate(all="ignore"):
        gain = scale / np.sqrt(var + read_attribute(node, "epsilon", 1e-5))
    if not all(np.isfinite(array).all() for array in (gain, bias, mean)):
        raise NotFoldableError("its parameters are not finite, or its variance is negative")
    return gain, bias - mean * gain


def _before(node: ir.Node) -> _Layer:
    """Returns the layer that computes the data of a batch norm, and nothing else."""
    x = node.inputs[0]
    maker = None if x is None else x.producer()
    if x is None or maker is None:
        raise NotFoldableError("no node computes its input")
    add, layer = None, maker
    operand = _constant_operand(maker)
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
    channels = _channels(layer, weight)
    bias = _bias_of(layer)
    if add is not None and operand is not None:
        bias = bias + _per_channel(add, operand, channels, rank)
    return _Layer(layer, weight, np.broadcast_to(bias, np.broadcast_shapes(bias.shape, (channels,))), add)


def _after(node: ir.Node) -> _Layer:
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
    return _Layer(layer, weight, _bias_of(layer), None)


def _fold_after(node: ir.Node, layer: _Layer, gain: Array, shift: Array, names: Names) -> None:
    """Folds a batch norm into the layer that reads it."""
    weight, op_type = layer.weight, layer.node.op_type
    shifted = weight * _along(shift, layer.node, weight, 0)
    if op_type == "Conv":
        added = shifted.sum(axis=tuple(range(1, weight.ndim)))
    else:
        of_output = 0 if read_attribute(layer.node, "transB", 0) else 1
        added = read_attribute(layer.node, "alpha", 1.0) * shifted.sum(axis=1 - of_output)
    _put(layer, weight * _along(gain, layer.node, weight, 0), layer.bias + added, names)
    x = node.inputs[0]
    layer.node.replace_input_with(0, x)
    if op_type == "MatMul":
        _add_bias(layer.node, added, names)
    remove([node])


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


def _constant_operand(node: ir.Node) -> int | None:
    """Returns the index of the operand of an Add that is constant; None for other nodes."""
    if (node.domain, node.op_type) != ("", "Add"):
        return None
    return next((i for i, value in enumerate(node.inputs) if value is not None and constant_tensor(value)), None)


def _per_channel(add: ir.Node, operand: int, channels: int, rank: int | None) -> Array:
    """Returns what an Add adds to each channel."""
    value = add.inputs[operand]
    tensor = None if value is None else constant_tensor(value)
    array = np.zeros(1) if tensor is None else tensor.numpy().astype(np.float64)
    if array.size == 1:
        return array.reshape(1)
    if rank is not None and array.ndim <= rank:
        shape = (1,) * (rank - array.ndim) + array.shape
        if shape == (1, channels, *(1,) * (rank - 2)):
            return array.reshape(-1)
    raise NotFoldableError(f"{describe(add)} adds more than a number for each channel")


def _channels(layer: ir.Node, weight: Array) -> int:
    """Returns the number of output channels of a layer."""
    if layer.op_type == "Conv":
        return int(weight.shape[0])
    if layer.op_type == "ConvTranspose":
        return int(weight.shape[1] * read_attribute(layer, "group", 1))
    return int(weight.shape[0 if read_attribute(layer, "transB", 0) else 1])


def _along(vector: Array, layer: ir.Node, weight: Array, side: int) -> Array:
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


def _pads(layer: ir.Node) -> bool:
    """Tests whether a Conv may pad its data."""
    mode = read_attribute(layer, "auto_pad", "NOTSET")
    return any(read_attribute(layer, "pads", [0])) if mode == "NOTSET" else mode != "VALID"


def _put(layer: _Layer, weight: Array, bias: Array, names: Names) -> None:
    """Gives a layer its weight and bias; the bias of a MatMul is that of the Add after it, if there is one."""
    node = layer.node
    value = node.inputs[1]
    assert value is not None, "see `_weight_of`"  # noqa: S101
    node.replace_input_with(1, _initializer(node, weight, value, f"{value.name}/folded", names))
    if node.op_type == "MatMul":
        if layer.add is not None:
            operand = _constant_operand(layer.add)
            assert operand is not None, "see `_before`"  # noqa: S101
            layer.add.replace_input_with(operand, _initializer(node, bias, value, f"{node.name}/bias", names))
        return
    if not bias.any() and len(node.inputs) < 3:
        return
    if bias.size == 1:
        bias = np.broadcast_to(bias, (_channels(node, weight),))
    node.resize_inputs(3)
    node.replace_input_with(2, _initializer(node, bias, value, f"{node.name}/bias", names))
    if node.op_type == "Gemm":
        node.attributes["beta"] = ir.AttrFloat32("beta", 1.0)


def _add_bias(node: ir.Node, bias: Array, names: Names) -> ir.Node:
    """Adds a bias after a MatMul; the sum takes its output's name and readers."""
    weight, output = node.inputs[1], node.outputs[0]
    assert weight is not None, "see `_weight_of`"  # noqa: S101
    make = NodesAfter(node, names, str(node.name))
    value = _initializer(node, bias, weight, f"{node.name}/bias", names)
    total = make.op("Add", output, value)
    total.type, total.shape = output.type, output.shape
    add = total.producer()
    assert add is not None, "it was made here"  # noqa: S101
    output.replace_all_uses_with(total, replace_graph_outputs=True)
    add.replace_input_with(0, output)
    total.name, output.name = output.name, total.name
    return add


def _initializer(node: ir.Node, array: Array, like: ir.Value, name: str, names: Names) -> ir.Value:
    """Returns a new initializer in the type of another one.

    Raises:
        ModelError: The values do not fit into the type.
    """
    tensor = constant_tensor(like)
    assert tensor is not None, "see `_weight_of`"  # noqa: S101
    with np.errstate(over="ignore"):
        values = array.astype(tensor.dtype.numpy())
    if not np.isfinite(values.astype(np.float64)).all():
        raise ModelError(
            f"a batch norm cannot be folded into {describe(node)}: the new values are up to "
            f"{np.abs(array).max():.3g}, beyond the range of {tensor.dtype.name.lower()}"
        )
    return new_initializer(owner(node), names.fresh(name), ir.Tensor(values, dtype=tensor.dtype))


def _take_over(old: ir.Value, node: ir.Node) -> None:
    """Lets a node compute another node's output, under its name."""
    new, name = node.outputs[0], old.name
    new.type, new.shape = old.type or new.type, old.shape or new.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    old.name, new.name = None, name
