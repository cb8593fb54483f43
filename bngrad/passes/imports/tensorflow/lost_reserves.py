"""What tf2onnx makes of a forward node whose statistics have a user: a node that no opset from 14 has.

::

    BatchNormalization(X, scale, offset, mean, variance)    {epsilon}
        -> (y, batch_mean, batch_variance, reserve_space_1, reserve_space_2[, reserve_space_3])

Seen of tf2onnx 1.17. X is always [N, C, ...]. The attributes is_training and exponential_avg_factor are lost, with
them what the node computes; the graph around it tells them:

* A gradient that takes a reserve output has the same is_training.
* If exponential_avg_factor is 1 in training, mean and variance are computed from X in front of the node.
* If it is another in training, nothing tells which: batch_mean and batch_variance are then beyond recovery, but
  the rest is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

GRADIENTS = {"FusedBatchNormGrad": 5, "FusedBatchNormGradV2": 5, "FusedBatchNormGradV3": 6}
"""The gradients, and how many inputs each has."""

_MOST_OF_ONNX = 3
"""How many outputs a BatchNormalization has at most."""

_FROM_X = ("ReduceMean", "Squeeze", "Cast", "Identity", "Reshape")
_ADVICE = "; convert with custom_ops that keep the op FusedBatchNorm, V2 or V3"


def has_lost_attributes(node: ir.Node) -> bool:
    """Whether a node is a FusedBatchNorm, V2 or V3 that tf2onnx renamed."""
    renamed = (node.domain, node.op_type) == ("", "BatchNormalization") and "training_mode" not in node.attributes
    return renamed and len(node.outputs) > _MOST_OF_ONNX


def lost_is_training(node: ir.Node) -> bool | None:
    """Whether such a node normalizes with the statistics of its batch; None if nothing tells."""
    told = _modes_of_gradients(node)
    if len(told) == 1:
        return bool(told.pop())
    return True if not told and _mean_is_of_x(node) else None


def lost_refusal(node: ir.Node) -> str | None:
    """Why what such a node lost cannot be recovered; None if it can."""
    if not has_lost_attributes(node):
        return None
    modes = _modes_of_gradients(node)
    if len(modes) > 1:
        return f"its is_training was lost, and gradients of both modes take its reserve outputs{_ADVICE}"
    training = lost_is_training(node)
    if training is None:
        return f"its is_training was lost, and no gradient takes a reserve output that would tell it{_ADVICE}"
    averages = node.outputs[1:3]
    if training and not _mean_is_of_x(node) and any(v.uses() or v.is_graph_output() for v in averages):
        return (
            f"its exponential_avg_factor was lost, and its output {averages[0].name!r} or {averages[1].name!r}, a "
            f"running average, is used{_ADVICE}"
        )
    return None


def _modes_of_gradients(node: ir.Node) -> set[int]:
    users = [user for value in node.outputs[3:] for user, _ in value.uses() if user.op_type in GRADIENTS]
    attributes = [user.attributes.get("is_training") for user in users]
    return {1 if attribute is None else attribute.value for attribute in attributes}


def _mean_is_of_x(node: ir.Node) -> bool:
    """Whether the mean is a reduction of X: tf2onnx puts it there if nothing of the old one is kept."""
    x, value = node.inputs[0], node.inputs[3]
    reduced = False
    while value is not None and value is not x and (producer := value.producer()) is not None:
        if producer.op_type not in _FROM_X:
            return False
        reduced = reduced or producer.op_type == "ReduceMean"
        value = producer.inputs[0]
    return reduced and value is x
