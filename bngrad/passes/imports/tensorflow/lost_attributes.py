"""Forward nodes that tf2onnx converts to an invalid BatchNormalization because their statistics are used.

::

    BatchNormalization(X, scale, offset, mean, variance)    {epsilon}
        -> (y, batch_mean, batch_variance, reserve_space_1, reserve_space_2[, reserve_space_3])

tf2onnx 1.17 does this; no opset from 14 on has such a node. X is always [N, C, ...]. The attributes is_training
and exponential_avg_factor, which define what the node computes, are lost. The surrounding graph determines them:

* A gradient that reads a reserve output has the same is_training.
* If exponential_avg_factor is 1 in training mode, mean and variance are computed from X before the node.
* Any other exponential_avg_factor in training mode cannot be recovered, and with it batch_mean and batch_variance;
  the other outputs can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

GRADIENTS = {"FusedBatchNormGrad": 5, "FusedBatchNormGradV2": 5, "FusedBatchNormGradV3": 6}
"""The gradient ops and their numbers of inputs."""

_MAX_ONNX_OUTPUTS = 3
"""The largest number of outputs of ONNX's BatchNormalization."""

_MEAN_OPS = ("ReduceMean", "Squeeze", "Cast", "Identity", "Reshape")
"""The ops with which tf2onnx computes the mean of X."""
_ADVICE = "; convert with custom_ops that keep the op FusedBatchNorm, V2 or V3"


def has_lost_attributes(node: ir.Node) -> bool:
    """Returns whether a node is a FusedBatchNorm, V2 or V3 that tf2onnx converted to a BatchNormalization."""
    renamed = (node.domain, node.op_type) == ("", "BatchNormalization") and "training_mode" not in node.attributes
    return renamed and len(node.outputs) > _MAX_ONNX_OUTPUTS


def recovered_is_training(node: ir.Node) -> bool | None:
    """Returns is_training of a node with lost attributes; None if the graph does not determine it."""
    modes = _modes_of_gradients(node)
    if len(modes) == 1:
        return bool(modes.pop())
    return True if not modes and _mean_is_of_x(node) else None


def recovery_refusal(node: ir.Node) -> str | None:
    """Returns why the lost attributes of a node cannot be recovered; None if they can, or if none is lost."""
    if not has_lost_attributes(node):
        return None
    modes = _modes_of_gradients(node)
    if len(modes) > 1:
        return f"its is_training was lost, and gradients of both modes read its reserve outputs{_ADVICE}"
    training = recovered_is_training(node)
    if training is None:
        return f"its is_training was lost, and no gradient that reads a reserve output determines it{_ADVICE}"
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
    """Tests whether the mean is computed from X, as tf2onnx does if exponential_avg_factor is 1."""
    x, value = node.inputs[0], node.inputs[3]
    reduced = False
    while value is not None and value is not x and (producer := value.producer()) is not None:
        if producer.op_type not in _MEAN_OPS:
            return False
        reduced = reduced or producer.op_type == "ReduceMean"
        value = producer.inputs[0]
    return reduced and value is x
