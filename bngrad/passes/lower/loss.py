"""Gradients of softmaxes and of cross entropy in standard ONNX."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.passes.glue import cast_like
from bngrad.passes.labels import read_labels
from bngrad.passes.node_view import axis_refusal
from bngrad.passes.nodes import known_rank

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.passes.lower.site import Outputs, Site


def softmax_grad(site: Site) -> Outputs:
    """SoftmaxGrad_13(dY, Y) {axis} -> dX = Y (dY - sum of dY Y over the axis)."""
    dY, y = site.x(0), site.x(1)
    projection = _sum(site, site.op("Mul", dY, y))
    return [site.op("Mul", y, site.op("Sub", dY, projection))]


def log_softmax_grad(site: Site) -> Outputs:
    """LogSoftmaxGrad_13(dY, Y) {axis} -> dX = dY - exp(Y) (sum of dY over the axis)."""
    dY, y = site.x(0), site.x(1)
    return [site.op("Sub", dY, site.op("Mul", site.op("Exp", y), _sum(site, dY)))]


def softmax_cross_entropy_loss_grad(site: Site) -> Outputs:
    """SoftmaxCrossEntropyLossGrad(dY, log_prob, labels[, weights]) {ignore_index, reduction} -> dX.

    dX = dY w (exp(log_prob) - onehot(label)), for the mean divided by the sum of w. The 1 is taken off in place:
    a OneHot would be one more tensor of that size, and takes longer (measured). 16 bits are computed in float, for
    ONNX Runtime has no ScatterElements that adds them.
    """
    log_prob = site.x(1)
    classes, share, dtype = read_labels(site, site.x(0), log_prob, site.x(2), site.optional(3))
    minus_one = site.op("Expand", site.constant(-1, dtype), site.op("Shape", classes))
    prob = site.op("Exp", site.cast(log_prob, dtype))
    difference = site.op("ScatterElements", prob, classes, minus_one, axis=1, reduction="add")
    return [cast_like(site, site.op("Mul", difference, share), dtype, log_prob)]


def softmax_refusal(node: ir.Node) -> str | None:
    """Why the gradient of a softmax of an opset before 13, over all axes from one on, cannot be lowered."""
    rank = known_rank(node.inputs)
    if rank is None:
        return "nobody knows its rank; expected a model that shape inference can read"
    return axis_refusal(node, 1, rank)


def loss_refusal(node: ir.Node) -> str | None:
    """Why the gradient of a cross entropy cannot be lowered."""
    if len(node.inputs) > 4:
        return f"it has {len(node.inputs)} inputs; expected dY, log_prob, labels and perhaps weights"
    return None


def _sum(site: Site, x: ir.Value) -> ir.Value:
    """The sum over what the softmax is over: an axis, or before opset 13 all from it on."""
    axes = [site.attribute("axis", -1)]
    if not site.node.op_type.endswith("_13"):
        rank = known_rank(site.node.inputs) or 0
        axes = list(range(rank))[site.attribute("axis", 1) :]
    return site.reduce("ReduceSum", x, axes, keepdims=True)
