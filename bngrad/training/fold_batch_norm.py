"""Folds a batch norm in inference mode into the layer before it, or into the one after it.

With gain a = scale / sqrt(var + epsilon) and shift t = bias - mean * a, both in double::

    a * Conv(x, W, B) + t   =  Conv(x, a * W, a * B + t)
    Conv(a * x + t, W, B)   =  Conv(x, W * a, B + sum of W * t)        without padding, whose zeros t would shift

and the same of ConvTranspose (before the batch norm), Gemm and MatMul, also with an Add of a bias after the layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from bngrad.errors import ModelError
from bngrad.graph.batch_norms import is_per_element, is_training_batch_norm
from bngrad.graph.constant_value import constant_tensor, constant_value, new_initializer
from bngrad.graph.node_makers import NodesAfter
from bngrad.graph.node_reader import read_attribute
from bngrad.graph.nodes import describe, owner, remove
from bngrad.training.foldable_layer import (
    FoldableLayer,
    NotFoldableError,
    along_channels,
    channels_of,
    constant_operand,
    layer_after,
    layer_before,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bngrad.graph.fresh_names import Names

    Array = NDArray[np.float64]

FOLDED = "bngrad.folded"
"""The key in the metadata of a layer for the name of the batch norm that was folded into it."""


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
        layer = layer_before(node)
    except NotFoldableError as before:
        try:
            layer = layer_after(node)
        except NotFoldableError as after:
            raise NotFoldableError(f"{before}; {after}") from None
        _fold_after(node, layer, gain, shift, names)
    else:
        _fold_before(node, layer, gain, shift, names)
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
        raise NotFoldableError("its bias, its mean or scale / sqrt(var + epsilon) is not finite")
    return gain, bias - mean * gain


def _fold_before(node: ir.Node, layer: FoldableLayer, gain: Array, shift: Array, names: Names) -> None:
    """Folds a batch norm into the layer that computes its data."""
    bias = layer.bias * gain + shift
    _put(layer, layer.weight * along_channels(gain, layer.node, layer.weight, 1), bias, names)
    unused, last = [node], layer.node
    if layer.node.op_type == "MatMul":
        last = layer.add or _add_bias(layer.node, bias, names)
    elif layer.add is not None:
        unused.append(layer.add)
    _take_over(node.outputs[0], last)
    remove(unused)


def _fold_after(node: ir.Node, layer: FoldableLayer, gain: Array, shift: Array, names: Names) -> None:
    """Folds a batch norm into the layer that reads it."""
    weight, op_type = layer.weight, layer.node.op_type
    shifted = weight * along_channels(shift, layer.node, weight, 0)
    if op_type == "Conv":
        added = shifted.sum(axis=tuple(range(1, weight.ndim)))
    else:
        of_output = 0 if read_attribute(layer.node, "transB", 0) else 1
        added = read_attribute(layer.node, "alpha", 1.0) * shifted.sum(axis=1 - of_output)
    _put(layer, weight * along_channels(gain, layer.node, weight, 0), layer.bias + added, names)
    x = node.inputs[0]
    layer.node.replace_input_with(0, x)
    if op_type == "MatMul":
        _add_bias(layer.node, added, names)
    remove([node])


def _put(layer: FoldableLayer, weight: Array, bias: Array, names: Names) -> None:
    """Gives a layer its weight and bias; the bias of a MatMul is that of the Add after it, if there is one."""
    node = layer.node
    value = node.inputs[1]
    assert value is not None, "see `_weight_of`"  # noqa: S101
    node.replace_input_with(1, _initializer(node, weight, value, f"{value.name}/folded", names))
    if node.op_type == "MatMul":
        if layer.add is not None:
            operand = constant_operand(layer.add)
            assert operand is not None, "see `layer_before`"  # noqa: S101
            layer.add.replace_input_with(operand, _initializer(node, bias, value, f"{node.name}/bias", names))
        return
    if not bias.any() and len(node.inputs) < 3:
        return
    if bias.size == 1:
        bias = np.broadcast_to(bias, (channels_of(node, weight),))
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
