"""Replaces a sequence that a split creates and constant indices read: PyTorch's chunk, split and unbind.

::

    s = SplitToSequence(x, [a, b])   y = SequenceAt(s, 1)    ->    _, y = Split(x, [a, b])
    s = SplitToSequence(x, n)        y = SequenceAt(s, 1)    ->    y = Slice(x, n, 2 n), where the size is unknown
    s = SplitToSequence(x, n)        y = SequenceAt(s, 1)    ->    the same where a node computes the scalar n
    s = SplitToSequence(x)           y = SequenceAt(s, 1)    ->    y = Slice(x, 1, 2), or Gather without keepdims

Values of a sequence type have no gradient rules; Split, Slice and Gather do. A sequence that anything else reads,
or that is read by a computed index, stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx_ir as ir

from bngrad.graph.constant_value import constant_value
from bngrad.graph.node_makers import NodesBefore
from bngrad.graph.nodes import owner, remove

if TYPE_CHECKING:
    from bngrad.graph.fresh_names import Names

_END = np.iinfo(np.int64).max


class _Parts(NamedTuple):
    """The parts into which a SplitToSequence cuts its input along an axis."""

    axis: int
    sizes: list[int] | None
    """The sizes of the parts; None where they depend on an unknown dimension."""
    size: int
    """The size of all parts but the last, if ``sizes`` is None."""
    keepdims: bool
    computed: ir.Value | None = None
    """The scalar that ``size`` stands for, if it is not constant."""


def split_sequences(graph: ir.Graph, names: Names) -> bool:
    """Replaces the sequences of a graph; returns whether there were any.

    Args:
        graph: The main graph of a model with types; it is changed.
        names: The source of new names.
    """
    nodes = [node for node in graph if (node.domain, node.op_type) == ("", "SplitToSequence")]
    replaced = [_replace(node, names) for node in nodes]
    return any(replaced)


def _replace(node: ir.Node, names: Names) -> bool:
    """Replaces one node and its readers; returns whether it could."""
    parts, users = _parts(node), [user for user, _ in node.outputs[0].uses()]
    indices = {user: _index(user) for user in users}
    chosen = {user: index for user, index in indices.items() if index is not None}
    if parts is None or len(chosen) != len(users) or node.outputs[0].is_graph_output():
        return False
    count = len(parts.sizes) if parts.sizes is not None else None
    if any(not -count <= i < count if count is not None else i < 0 for i in chosen.values()):
        return False
    x = node.inputs[0]
    assert x is not None, "a node without data has no parts"  # noqa: S101
    make = NodesBefore(node, names, node.name or node.op_type)
    if parts.keepdims and parts.sizes is not None:
        words = [f"part{index}" for index in range(len(parts.sizes))]
        split = make.outputs_of("Split", x, make.int64(parts.sizes), outputs=words, axis=parts.axis)
        pieces = {user: split[index] for user, index in chosen.items()}
    elif parts.computed is not None:
        size, axes = make.op("Reshape", parts.computed, make.int64([1])), make.int64([parts.axis])
        pieces = {
            user: make.op(
                "Slice", x, make.op("Mul", size, make.int64([i])), make.op("Mul", size, make.int64([i + 1])), axes
            )
            for user, i in chosen.items()
        }
    elif parts.keepdims:
        axes = make.int64([parts.axis])
        pieces = {
            user: make.op(
                "Slice", x, make.int64([i * parts.size]), make.int64([min((i + 1) * parts.size, _END)]), axes
            )
            for user, i in chosen.items()
        }
    else:
        pieces = {user: make.op("Gather", x, make.int64(i), axis=parts.axis) for user, i in chosen.items()}
    for user, value in pieces.items():
        value.type = x.type
        (old,) = user.outputs
        copy = ir.node("Identity", [value], name=user.name)
        copy.metadata_props.update(user.metadata_props)
        ir.convenience.replace_nodes_and_values(owner(user), user, [user], [copy], [old], copy.outputs)
    remove([node])
    return True


def _parts(node: ir.Node) -> _Parts | None:
    """Returns the parts into which a node cuts its input; None if they are unknown."""
    x = node.inputs[0] if node.inputs else None
    if x is None or not x.shape:
        return None
    axis_attribute, keepdims = node.attributes.get("axis"), node.attributes.get("keepdims")
    axis = (0 if axis_attribute is None else axis_attribute.as_int()) % len(x.shape)
    length = x.shape[axis]
    split = node.inputs[1] if len(node.inputs) > 1 else None
    if split is None:
        sizes = [1] * length if isinstance(length, int) else None
        return _Parts(axis, sizes, 1, keepdims is None or bool(keepdims.as_int()))
    tensor = constant_value(split)
    if tensor is None:
        is_scalar = split.shape is not None and not len(split.shape)
        return _Parts(axis, None, 0, keepdims=True, computed=split) if is_scalar else None
    split_sizes = tensor.numpy()
    if split_sizes.ndim == 0 and split_sizes <= 0:
        return None
    if split_sizes.ndim:
        return _Parts(axis, [int(size) for size in split_sizes], 0, keepdims=True)
    size = int(split_sizes)
    part_sizes = [min(size, length - i) for i in range(0, length, size)] if isinstance(length, int) else None
    return _Parts(axis, part_sizes, size, keepdims=True)


def _index(node: ir.Node) -> int | None:
    """The constant index of a SequenceAt; None for another node, or a computed index."""
    if (node.domain, node.op_type) != ("", "SequenceAt") or len(node.inputs) != 2 or node.inputs[1] is None:
        return None
    index = constant_value(node.inputs[1])
    return None if index is None else int(index.numpy())
