"""Folds a scale and a shift after a batch norm into its parameters.

::

    Y = BatchNormalization(X, scale, bias, ...);  A = Mul(Y, v);  B = Add(A, t)
    =>  B = BatchNormalization(X, scale * v, bias * v + t, ...)

Networks that came from Caffe have these after every batch norm. The function and its parameters stay the same. The
forward pass saves two passes over the data and the backward pass four: v and t get their gradients from those of
the batch norm's own parameters.
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
    """Folds every scale and shift into the batch norm before it, in the main graph.

    Matches: a BatchNormalization whose Y only one Mul or Add reads and is not an output of the graph, where the
    other operand is an input or initializer, perhaps unsqueezed, with one element for each channel by its shape.
    Guarantees: no such Mul or Add is left; the output of the last one keeps its name.

    Args:
        names: The source of new names; by default those that the model does not have.
    """

    def __init__(self, names: Names | None = None) -> None:
        super().__init__()
        self._names = names

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        names = self._names or Names(model)
        folded: list[ir.Node] = []
        for node in _batch_norms(model.graph):
            while (follower := _follower(node)) is not None:
                _fold(node, *follower, names)
                folded.append(follower[0])
        remove_unused(folded)
        return ir.passes.PassResult(model, modified=bool(folded))

    def ensures(self, model: ir.Model) -> None:
        """No batch norm is followed by a scale or a shift that can be folded."""
        for node in _batch_norms(model.graph):
            if (follower := _follower(node)) is not None:
                raise ir.passes.PostconditionError(f"{follower[0].name} still follows {node.name}")


def _batch_norms(graph: ir.Graph) -> Iterator[ir.Node]:
    return (node for node in graph if (node.domain, node.op_type) == ("", "BatchNormalization"))


def _follower(batch_norm: ir.Node) -> tuple[ir.Node, int, ir.Value] | None:
    """The Mul or Add that can be folded into a batch norm, the index of its input Y, and its other operand."""
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
    # Broadcasting aligns the last dimensions, so that those after the channels have to be 1.
    expected = (*channels, *[1] * (len(x.shape) - 2))
    if shape not in (expected, (1, *expected)) or operand.dtype != scale.dtype:
        return None
    maker = operand.producer()
    if maker is None:
        return operand
    # A computed value may be computed after the batch norm; a parameter is there from the start.
    vector = maker.inputs[0] if maker.op_type == "Unsqueeze" else None
    is_parameter = vector is not None and vector.producer() is None and static_shape(vector) == channels
    return vector if is_parameter else None


def _fold(batch_norm: ir.Node, after: ir.Node, index: int, parameter: ir.Value, names: Names) -> None:
    """Folds the node after a batch norm into it; nothing reads that node then."""
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
    """A parameter as a vector over the channels, computed before the batch norm."""
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
