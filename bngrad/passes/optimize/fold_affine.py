"""A scale and a shift behind a batch norm become part of it.

::

    Y = BatchNormalization(X, scale, bias, ...);  A = Mul(Y, v);  B = Add(A, t)
    =>  B = BatchNormalization(X, scale * v, bias * v + t, ...)

Networks that came from Caffe have this behind every batch norm. It is the same function of the same parameters,
and two passes over the data are left out on the way forward, and four on the way back: v and t get their gradients
from those of the batch norm's own parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.node_reader import static_shape
from bngrad.graph.nodes import remove

if TYPE_CHECKING:
    from bngrad.graph.fresh_names import Names


def fold_affine(graph: ir.Graph, names: Names) -> int:
    """Folds what can be folded, in the main graph.

    Matches: a BatchNormalization whose Y is read by one Mul or Add alone and is no output of the graph, where the
    other operand is an input or initializer, perhaps unsqueezed, with one element for each channel by its shape.

    Args:
        graph: With the shapes of its values.
        names: Where new names come from.

    Returns:
        How many nodes were folded.
    """
    folded: list[ir.Node] = []
    for node in graph:
        if (node.domain, node.op_type) == ("", "BatchNormalization"):
            while (after := _fold_next(graph, node, names)) is not None:
                folded.append(after)
    remove([unused for after in folded for unused in _with_makers(after)])
    return len(folded)


def _with_makers(unused: ir.Node) -> list[ir.Node]:
    """A node that nothing reads, and those before it that nothing else reads; none of them has inputs then."""
    found = [unused]
    for node in found:
        inputs = list(node.inputs)
        for place in range(len(inputs)):
            node.replace_input_with(place, None)
        makers = dict.fromkeys(value.producer() for value in inputs if value is not None)
        found += [maker for maker in makers if maker is not None and _is_unused(maker)]
    return found


def _is_unused(node: ir.Node) -> bool:
    return not any(value.uses() or value.is_graph_output() for value in node.outputs)


def _fold_next(graph: ir.Graph, batch_norm: ir.Node, names: Names) -> ir.Node | None:
    """Folds the node behind a batch norm into it; returns that, which nothing reads then, or None."""
    y = batch_norm.outputs[0]
    uses = y.uses()
    if len(uses) != 1 or y.is_graph_output():
        return None
    ((after, index),) = uses
    if after.domain != "" or after.op_type not in ("Mul", "Add") or after.graph is not graph:
        return None
    operand = after.inputs[1 - index]
    vector = _per_channel(graph, batch_norm, operand, names) if operand is not y else None
    if vector is None:
        return None
    for slot in (1, 2) if after.op_type == "Mul" else (2,):
        old = batch_norm.inputs[slot]
        new = ir.node(
            after.op_type, [old, vector], name=names.fresh(f"{after.name}_{('scale', 'bias')[slot - 1]}")
        )
        new.outputs[0].name = new.name
        new.outputs[0].type, new.outputs[0].shape = vector.type, vector.shape
        graph.insert_before(batch_norm, new)
        batch_norm.replace_input_with(slot, new.outputs[0])
    after.replace_input_with(index, None)
    ir.convenience.replace_nodes_and_values(graph, batch_norm, [], [], after.outputs, [y])
    after.outputs[0].name = None
    return after


def _per_channel(graph: ir.Graph, batch_norm: ir.Node, operand: ir.Value | None, names: Names) -> ir.Value | None:
    """The operand as a vector over channels, made in front of the batch norm; None if it is not one."""
    x, scale = batch_norm.inputs[0], batch_norm.inputs[1]
    shape, channels = static_shape(operand), static_shape(scale)
    if operand is None or x is None or x.shape is None or scale is None or shape is None or channels is None:
        return None
    # Aligned with X from behind, the extents are 1 but for the channels'.
    spatial = len(x.shape) - 2
    wanted = (*channels, *[1] * spatial)
    if shape not in (wanted, (1, *wanted)) or operand.dtype != scale.dtype:
        return None
    maker = operand.producer()
    if maker is not None:
        # What is computed may be so behind the batch norm; a parameter is there from the start.
        vector = maker.inputs[0] if maker.op_type == "Unsqueeze" else None
        given = vector is not None and vector.producer() is None and static_shape(vector) == channels
        return vector if given else None
    if shape == channels:
        return operand
    target = ir.node(
        "Constant", [], {"value": ir.tensor(list(channels))}, name=names.fresh(f"{batch_norm.name}_c")
    )
    flat = ir.node("Reshape", [operand, target.outputs[0]], name=names.fresh(f"{batch_norm.name}_vector"))
    for node in (target, flat):
        node.outputs[0].name = node.name
    target.outputs[0].dtype, target.outputs[0].shape = ir.DataType.INT64, ir.Shape([1])
    flat.outputs[0].type, flat.outputs[0].shape = operand.type, scale.shape
    graph.insert_before(batch_norm, [target, flat])
    return flat.outputs[0]
