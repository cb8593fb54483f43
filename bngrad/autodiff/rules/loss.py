"""Losses over class labels, and softmaxes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.autodiff.rule import gradient
from bngrad.graph.batch_norm_terms import cast_like
from bngrad.graph.class_labels import gradient_of_weights, read_labels
from bngrad.graph.node_reader import dtype_of, like
from bngrad.graph.shapes import shape_of, zeros
from bngrad.opset.op_attributes import AXIS, LOSS

if TYPE_CHECKING:
    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients


@gradient("Softmax", versions=(13,), attributes=AXIS)
def softmax(back: Backward) -> Gradients:
    """SoftmaxGrad_13(dY, Y) along the same axis."""
    return [back.microsoft("SoftmaxGrad_13", back.dY, back.y(), axis=back.attribute("axis", -1))]


@gradient("LogSoftmax", versions=(13,), attributes=AXIS)
def log_softmax(back: Backward) -> Gradients:
    """LogSoftmaxGrad_13(dY, Y) along the same axis."""
    return [back.microsoft("LogSoftmaxGrad_13", back.dY, back.y(), axis=back.attribute("axis", -1))]


@gradient("SoftmaxCrossEntropyLoss", inputs=(0, 2), versions=(13,), attributes=LOSS)
def softmax_cross_entropy_loss(back: Backward) -> Gradients:
    """SoftmaxCrossEntropyLossGrad(dY, log_prob, labels[, weights]); log_prob is the node's second output.

    Where the loss also depends on log_prob, a LogSoftmax over the classes, the gradient from it is added.
    """
    dY, d_log_prob = (*back.all_dY, None)[:2]
    x, labels, weights, log_prob, parts = back.x(0), back.x(1), back.optional(2), back.y(1), []
    if dY is not None and back.needs(0):
        inputs = (dY, log_prob, labels, *([] if weights is None else [weights]))
        parts.append(back.microsoft("SoftmaxCrossEntropyLossGrad", *inputs, **back.attributes()))
    if d_log_prob is not None and back.needs(0):
        parts.append(back.microsoft("LogSoftmaxGrad_13", d_log_prob, log_prob, axis=1))
    dweights = None
    if weights is not None and back.needs(2):
        log_prob.type = x.type
        dweights = (
            zeros(back, shape_of(back, weights), dtype_of(weights))
            if dY is None
            else gradient_of_weights(back, dY, log_prob, back.y(), labels, weights)
        )
    return [back.op("Add", *parts) if len(parts) > 1 else parts[0] if parts else None, None, dweights]


@gradient("NegativeLogLikelihoodLoss", inputs=(0, 2), versions=(13, 22), attributes=LOSS)
def negative_log_likelihood_loss(back: Backward) -> Gradients:
    """dX = -dY w at the label of each sample, else 0; the mean divides by the sum of w."""
    x, dX, dweights = back.x(0), None, None
    if back.needs(0):
        classes, share, dtype = read_labels(back, back.dY, x, back.x(1), back.optional(2))
        share = cast_like(back, back.op("Neg", share), dtype, x)
        nothing = back.op("Expand", like(back, 0, x), back.op("Shape", x))
        shares = back.op("Expand", share, back.op("Shape", classes))
        dX = back.op("ScatterElements", nothing, classes, shares, axis=1)
    if back.needs(2):
        dweights = gradient_of_weights(back, back.dY, x, back.y(), back.x(1), back.x(2))
    return [dX, None, dweights]
