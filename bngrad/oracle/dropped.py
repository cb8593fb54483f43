"""Paths that ORT's gradient builder silently drops: it takes what changes for a constant.

There are inputs and outputs of ops through which it never sends a gradient. Where the loss depends on nothing else
of the node, its training graph is not even valid. Our own rules have most of these gradients. All were measured on
onnxruntime-training-cpu 1.19.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.autodiff.edges import rule_of, smooth_inputs
from bngrad.autodiff.hidden_paths import refuse_hidden_paths
from bngrad.autodiff.straight_through import rounding_of
from bngrad.errors import ModelError
from bngrad.graph.batch_norms import is_training_batch_norm
from bngrad.graph.node_reader import constant_of
from bngrad.graph.nodes import describe
from bngrad.graph.subgraphs import nodes_of, subgraphs

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import onnx_ir as ir

    from bngrad.oracle.path import GradientPath, Step

_ALL = range(2**31)

DROPPED_INPUTS: Mapping[str, Collection[int]] = {
    "Clip": (1, 2),
    "DequantizeLinear": (1,),
    "Dropout": (1,),
    "OneHot": (2,),
    "Pad": (2,),
    "Pow": (1,),
    "Range": (0, 2),
    "Resize": (1, 2),
    "SoftmaxCrossEntropyLoss": (2,),
    "Optional": (0,),
    "SequenceConstruct": _ALL,
    "SequenceInsert": (1,),
    "SequenceMap": _ALL,
    "SplitToSequence": (0,),
}
"""The float inputs, by the op, that no gradient is sent to."""

DROPPED_OUTPUTS: Mapping[str, Collection[int]] = {
    "BatchNormalization": (1, 2),
    "LayerNormalization": (1, 2),
    "SimplifiedLayerNormalization": (1,),
    "SoftmaxCrossEntropyLoss": (1,),
}
"""The float outputs, by the op, that no gradient is taken from."""

_MOVES = "which is a value of --wrt or depends on one (by default the weights)"
_LEAVE_OUT = "leave out what it depends on with --wrt"
_OTHER_BUILDER = f"use --builder bngrad, or {_LEAVE_OUT}"


def refuse_dropped(path: GradientPath) -> None:
    """Refuses a model whose gradient has paths that ORT's gradient builder drops.

    Raises:
        ModelError: There is one; the first node is named.
        UnsupportedNodeError: A node carries a float on as text.
    """
    refuse_hidden_paths(path.loss, path.moving)
    for step in path.steps:
        if (rounding := rounding_of(step.node)) is not None and rounding.x in path.moving:
            raise ModelError(
                f"{describe(rounding.quantizer)} rounds {rounding.x.name!r}, {_MOVES}: ONNX Runtime's gradient "
                f"builder ignores the rounding; {_OTHER_BUILDER}"
            )
        reason = _dropped(step, path.reaching) or _dropped_in_body(step.node, path.moving)
        if reason:
            raise ModelError(f"{describe(step.node)} has {reason}")


def _dropped(step: Step, reaching: Collection[ir.Value]) -> str | None:
    node, rule = step.node, rule_of(step.node)
    for index, value in step.inputs:
        if index in _of(node, DROPPED_INPUTS):
            remedy = _OTHER_BUILDER if rule is not None and rule.differentiates(index) else _LEAVE_OUT
            return (
                f"input {index}, {value.name!r}, {_MOVES}: ONNX Runtime's gradient builder takes it for a "
                f"constant; {remedy}"
            )
    for index, value in enumerate(node.outputs):
        if index in _of(node, DROPPED_OUTPUTS) and value in reaching and not _only_updates(node, index):
            remedy = _LEAVE_OUT if rule is None else _OTHER_BUILDER
            return (
                f"output {index}, {value.name!r}, which the loss depends on: ONNX Runtime's gradient builder "
                f"sends no gradient through it; {remedy}"
            )
    return None


def _only_updates(node: ir.Node, index: int) -> bool:
    """Tests whether only batch norms in training mode read a new running statistic, to update it once more."""
    readers = node.outputs[index].uses()
    # Without a reader, it is the loss itself that the output reaches.
    return bool(readers) and all(
        is_training_batch_norm(reader)
        and place in (3, 4)
        and (not reader.outputs[place - 2].uses() or _only_updates(reader, place - 2))
        for reader, place in readers
    )


def _dropped_in_body(node: ir.Node, moving: Collection[ir.Value]) -> str | None:
    """ORT inlines an If whose condition is constant, and then differentiates the nodes of its body."""
    for body in subgraphs(node):
        for inner in nodes_of(body):
            moved = [
                index for index, value in smooth_inputs(inner) if value in moving or _is_made_inside(value, node)
            ]
            dropped = _of(inner, DROPPED_INPUTS)
            outputs = [value for index, value in enumerate(inner.outputs) if index in _of(inner, DROPPED_OUTPUTS)]
            used = any(value.uses() or value.is_graph_output() for value in outputs)
            if any(index in dropped for index in moved) or (moved and used):
                return (
                    f"{describe(inner)} in its body, whose inputs or outputs ONNX Runtime's "
                    f"gradient builder takes for constants; {_LEAVE_OUT}"
                )
    return None


def _is_made_inside(value: ir.Value, node: ir.Node) -> bool:
    """Tests whether a value is computed in a body of a node."""
    return value.graph is not node.graph and constant_of(value) is None


def _of(node: ir.Node, table: Mapping[str, Collection[int]]) -> Collection[int]:
    return () if node.domain else table.get(node.op_type, ())
