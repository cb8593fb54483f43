"""Gradients of softmaxes and of cross entropy in standard ONNX."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.graph.batch_norm_terms import cast_like
from bngrad.graph.class_labels import read_labels
from bngrad.graph.guards import zero_where_zero
from bngrad.graph.node_reader import axis_refusal
from bngrad.graph.nodes import known_rank
from bngrad.opset.op_attributes import AXIS, LOSS
from bngrad.passes.lower.lowering import lowering

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.passes.lower.lowering import Outputs
    from bngrad.passes.lower.site import Site


def loss_refusal(node: ir.Node) -> str | None:
    """Returns the reason why the gradient of a cross entropy cannot be lowered; None if it can."""
    if len(node.inputs) > 4:
        return f"it has {len(node.inputs)} inputs; expected dY, log_prob, labels and perhaps weights"
    return None


def softmax_refusal(node: ir.Node) -> str | None:
    """Returns the reason why the gradient of a softmax cannot be lowered; None if it can.

    The softmax is of an opset before 13, over all axes from ``axis`` on.
    """
    rank = known_rank(node.inputs)
    if rank is None:
        return "its rank is unknown; expected a model that shape inference can read"
    return axis_refusal(node, 1, rank)


@lowering("SoftmaxGrad", refusal=softmax_refusal, attributes=AXIS)
@lowering("SoftmaxGrad_13", attributes=AXIS)
def softmax_grad(site: Site) -> Outputs:
    """SoftmaxGrad_13(dY, Y) {axis} -> dX = Y (dY - sum of dY Y over the axis), and 0 where all of that dY is 0.

    Y is NaN where all of X along the axis is -inf, as in masked attention; a Where after it removes the NaN.
    """
    dY, y = site.x(0), site.x(1)
    projection = _sum(site, site.op("Mul", dY, y))
    dX = site.op("Mul", y, site.op("Sub", dY, projection))
    if not _may_be_masked(y):
        return [dX]
    return [zero_where_zero(site, _sum(site, site.op("Abs", dY)), dX, typed=y)]


@lowering("LogSoftmaxGrad", refusal=softmax_refusal, attributes=AXIS)
@lowering("LogSoftmaxGrad_13", attributes=AXIS)
def log_softmax_grad(site: Site) -> Outputs:
    """LogSoftmaxGrad_13(dY, Y) {axis} -> dX = dY - exp(Y) (sum of dY over the axis), dY where that sum is 0."""
    dY, y = site.x(0), site.x(1)
    total = _sum(site, dY)
    product = site.op("Mul", site.op("Exp", y), total)
    if _may_be_masked(y):
        product = zero_where_zero(site, total, product, typed=y)
    return [site.op("Sub", dY, product)]


@lowering("SoftmaxCrossEntropyLossGrad", refusal=loss_refusal, attributes=LOSS)
def softmax_cross_entropy_loss_grad(site: Site) -> Outputs:
    """SoftmaxCrossEntropyLossGrad(dY, log_prob, labels[, weights]) {ignore_index, reduction} -> dX.

    dX = dY w (exp(log_prob) - onehot(label)), for the mean divided by the sum of w. The 1 is subtracted in place:
    a OneHot would be one more tensor of that size, and takes longer (measured). 16 bits are computed in float, as
    ONNX Runtime has no ScatterElements that adds them. Where w is 0, so is dX, even if log_prob is NaN.
    """
    log_prob = site.x(1)
    classes, share, dtype = read_labels(site, site.x(0), log_prob, site.x(2), site.optional(3))
    minus_one = site.op("Expand", site.constant(-1, dtype), site.op("Shape", classes))
    prob = site.op("Exp", site.cast(log_prob, dtype))
    difference = site.op("ScatterElements", prob, classes, minus_one, axis=1, reduction="add")
    dX = site.op("Mul", difference, share)
    of_each = site.attribute("reduction", "mean") == "none"
    if of_each or site.optional(3) is not None or "ignore_index" in site.node.attributes:
        dX = zero_where_zero(site, share, dX)
    return [cast_like(site, dX, dtype, log_prob)]


_UNMASKED = frozenset(("Conv", "ConvTranspose", "FusedMatMul", "Gemm", "MatMul"))
_SCALED = frozenset(("Cast", "Div", "Flatten", "Identity", "Mul", "Reshape", "Transpose"))


def _may_be_masked(y: ir.Value) -> bool:
    """Tests whether a softmax may have read -inf: not where it reads a product of matrices, perhaps scaled."""
    node = y.producer()
    node = None if node is None or not node.inputs or node.inputs[0] is None else node.inputs[0].producer()
    while node is not None and node.op_type in _SCALED and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node is None or node.op_type not in _UNMASKED


def _sum(site: Site, x: ir.Value) -> ir.Value:
    """The sum over the axes of the softmax: one axis, or before opset 13 all from it on."""
    axes = [site.attribute("axis", -1)]
    if not site.node.op_type.endswith("_13"):
        rank = known_rank(site.node.inputs) or 0
        axes = list(range(rank))[site.attribute("axis", 1) :]
    return site.reduce("ReduceSum", x, axes, keepdims=True)
