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

from bngrad.graph.fresh_names import Names
from bngrad.graph.node_reader import static_shape
from bngrad.graph.nodes import owner, remove_unused

if TYPE_CHECKING:
    from collections.abc import Iterator


class FoldAffinePass(ir.passes.InPlacePass):
    """Folds every scale and shift into the batch norm in front of it, in the main graph.

    Matches: a BatchNormalization whose Y is read by one Mul or Add alone and is no output of the graph, where the
    other operand is an input or initializer, perhaps unsqueezed, with one element for each channel by its shape.
    Guarantees: none of these is left; the output of the last one keeps its name.

    Args:
        names: Where new names come from; by default those that the model does not have.
    """

    def __init__(self, names: Names | None = None) -> None:
        super().__init__()
        self._names = names

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        names = self._names or Names(model)
        folded: list[ir.Node] = []
        for node in _batch_norms(model.graph):
            while (found := _follower(node)) is not None:
                _fold(node, *found, names)
                folded.append(found[0])
        remove_unused(folded)
        return ir.passes.PassResult(model, modified=bool(folded))

    def ensures(self, model: ir.Model) -> None:
        """No batch norm has a scale or a shift behind it that can be folded."""
        for node in _batch_norms(model.graph):
            if (found := _follower(node)) is not None:
                raise ir.passes.PostconditionError(f"{found[0].name} is still behind {node.name}")


def _batch_norms(graph: ir.Graph) -> Iterator[ir.Node]:
    return (node for node in graph if (node.domain, node.op_type) == ("", "BatchNormalization"))


def _follower(batch_norm: ir.Node) -> tuple[ir.Node, int, ir.Value] | None:
    """The Mul or Add that can be folded into a batch norm, which of its inputs Y is, and what it takes besides."""
    y = batch_norm.outputs[0]
    uses = y.uses()
    if len(uses) != 1 or y.is_graph_output():
        return None
    ((after, index),) = uses
    if after.domain != "" or after.op_type not in ("Mul", "Add") or after.graph is not batch_norm.graph:
        return None
    operand = after.inputs[1 - index]
    parameter = _parameter(operand, batch_norm) if operand is not y else None
    return None if parameter is None else (after, index, parameter)


def _parameter(operand: ir.Value | None, batch_norm: ir.Node) -> ir.Value | None:
    """The input or initializer with one element for each channel that an operand is, or unsqueezes; else None."""
    x, scale = batch_norm.inputs[0], batch_norm.inputs[1]
    shape, channels = static_shape(operand), static_shape(scale)
    if operand is None or x is None or x.shape is None or scale is None or shape is None or channels is None:
        return None
    # Broadcasting aligns the last dimensions, so that those behind the channels have to be 1.
    wanted = (*channels, *[1] * (len(x.shape) - 2))
    if shape not in (wanted, (1, *wanted)) or operand.dtype != scale.dtype:
        return None
    maker = operand.producer()
    if maker is None:
        return operand
    # A computed value may be computed after the batch norm; a parameter is there from the start.
    vector = maker.inputs[0] if maker.op_type == "Unsqueeze" else None
    given = vector is not None and vector.producer() is None and static_shape(vector) == channels
    return vector if given else None


def _fold(batch_norm: ir.Node, after: ir.Node, index: int, parameter: ir.Value, names: Names) -> None:
    """Makes the node behind a batch norm part of it; nothing reads that node then."""
    graph, y = owner(batch_norm), batch_norm.outputs[0]
    vector = _vector(parameter, batch_norm, names)
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


def _vector(parameter: ir.Value, batch_norm: ir.Node, names: Names) -> ir.Value:
    """A parameter as a vector over the channels, made in front of the batch norm."""
    channels = static_shape(batch_norm.inputs[1])
    assert channels is not None, "see `_parameter`"  # noqa: S101
    if static_shape(parameter) == channels:
        return parameter
    target = ir.node(
        "Constant", [], {"value": ir.tensor(list(channels))}, name=names.fresh(f"{batch_norm.name}_c")
    )
    flat = ir.node("Reshape", [parameter, target.outputs[0]], name=names.fresh(f"{batch_norm.name}_vector"))
    for node in (target, flat):
        node.outputs[0].name = node.name
    target.outputs[0].dtype, target.outputs[0].shape = ir.DataType.INT64, ir.Shape([1])
    flat.outputs[0].type, flat.outputs[0].shape = parameter.type, ir.Shape(channels)
    owner(batch_norm).insert_before(batch_norm, [target, flat])
    return flat.outputs[0]
