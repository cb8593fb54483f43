"""Per-sample factors of a loss over class labels, for the gradients of NegativeLogLikelihoodLoss and others.

loss_i = -w_i log_prob_i[label_i], where w_i is the weight of the class, and 0 for a label that is ignored; then
their sum, or their mean: the sum divided by the sum of w.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import onnx_ir as ir

from bngrad.graph.batch_norm_terms import cast_like, statistics_dtype
from bngrad.graph.shapes import shape_of

if TYPE_CHECKING:
    from bngrad.graph.builder import NodeMaker
    from bngrad.graph.node_site import NodeSite


class Labels(NamedTuple):
    """Labels and factors of the samples, in shapes that broadcast over dimension 1, the classes."""

    classes: ir.Value
    """The label of each sample, int64; class 0 where it is ignored, since its factor is 0."""
    share: ir.Value
    """dY w of each sample, divided by the sum of w for the mean; a scalar if all samples have the same."""
    dtype: ir.DataType
    """The type of ``share``: sums of weights overflow 16-bit types."""


def read_labels(
    at: NodeSite, dY: ir.Value, scores: ir.Value, labels: ir.Value, weights: ir.Value | None
) -> Labels:
    """Makes the nodes that read the labels of a loss.

    Args:
        at: The node, with the attributes ``ignore_index`` and ``reduction``.
        dY: The gradient of the loss: a scalar, or for reduction ``none`` one for each sample.
        scores: The input of the loss, with the classes in dimension 1.
        labels: int32 or int64, in the shape of scores without dimension 1.
        weights: The weight of each class.
    """
    dtype = statistics_dtype(scores)
    classes, ignored = _classes(at, labels, _ignore_index(at))
    w = _weight_of_each(at, classes, ignored, weights, dtype)
    share, reduction = at.cast(dY, dtype), at.attribute("reduction", "mean")
    if reduction == "mean":
        share = at.op("Div", share, _total(at, labels, w, dtype))
    if w is not None:
        share = at.op("Mul", share, w)
    if w is not None or reduction == "none":
        share = at.op("Unsqueeze", share, at.int64([1]))
    share.dtype = dtype
    return Labels(at.op("Unsqueeze", classes, at.int64([1])), share, dtype)


def gradient_of_weights(
    at: NodeSite, dY: ir.Value, log_prob: ir.Value, loss: ir.Value, labels: ir.Value, weights: ir.Value
) -> ir.Value:
    """Computes the gradient of a loss with respect to the weights of its classes.

    dw_c is the sum of -dY log_prob_i[c] over the samples i of class c; for the mean L = sum loss_i / W, where W is
    the sum of w over the samples, that of dY (-log_prob_i[c] - L) / W.

    Args:
        at: The node, with the attributes ``ignore_index`` and ``reduction``.
        dY: The gradient of the loss, as in `read_labels`.
        log_prob: The logarithms of the probabilities, with the classes in dimension 1.
        loss: The output of the node, which is L for the mean.
        labels: The labels, as in `read_labels`.
        weights: The weight of each class.
    """
    dtype = statistics_dtype(log_prob)
    classes, ignored = _classes(at, labels, _ignore_index(at))
    axis = at.int64([1])
    picked = at.op("Squeeze", at.op("GatherElements", log_prob, at.op("Unsqueeze", classes, axis), axis=1), axis)
    picked.type = log_prob.type
    slope, share = at.op("Neg", at.cast(picked, dtype)), at.cast(dY, dtype)
    if at.attribute("reduction", "mean") == "mean":
        slope = at.op("Sub", slope, at.cast(loss, dtype))
        w = _weight_of_each(at, classes, ignored, weights, dtype)
        share = at.op("Div", share, _total(at, labels, w, dtype))
    if ignored is not None:
        slope = at.op("Where", ignored, at.constant(0, dtype), slope)
    of_each = at.op("Mul", slope, share)
    of_each.dtype = dtype
    result = at.microsoft("GatherGrad", shape_of(at, weights), classes, of_each, axis=0)
    result.shape = weights.shape
    return cast_like(at, result, dtype, weights)


def weight_of_each(
    make: NodeMaker,
    labels: ir.Value,
    weights: ir.Value | None,
    ignore_index: int | None,
    dtype: ir.DataType,
) -> ir.Value | None:
    """Makes the weight w of each sample: the weight of its class, and 0 where its label is ignored.

    Args:
        make: The maker of the nodes.
        labels: int32 or int64.
        weights: The weight of each class; None if all are 1.
        ignore_index: The label of samples that do not count; None if all do.
        dtype: The type of w.

    Returns:
        w in the shape of the labels; None if all are 1.
    """
    classes, ignored = _classes(make, labels, ignore_index)
    return _weight_of_each(make, classes, ignored, weights, dtype)


def _ignore_index(at: NodeSite) -> int | None:
    return int(at.attribute("ignore_index", 0)) if "ignore_index" in at.node.attributes else None


def _classes(make: NodeMaker, labels: ir.Value, ignore_index: int | None) -> tuple[ir.Value, ir.Value | None]:
    """Returns the labels in int64, 0 where they are ignored, and a mask of these if an index is ignored."""
    classes = make.cast(labels, ir.DataType.INT64)
    if ignore_index is None:
        return classes, None
    ignored = make.op("Equal", classes, make.int64(ignore_index))
    return make.op("Where", ignored, make.int64(0), classes), ignored


def _weight_of_each(
    make: NodeMaker,
    classes: ir.Value,
    ignored: ir.Value | None,
    weights: ir.Value | None,
    dtype: ir.DataType,
) -> ir.Value | None:
    """The weight w of each sample; None if all are 1."""
    w = None if weights is None else make.op("Gather", make.cast(weights, dtype), classes)
    if ignored is None:
        return w
    return make.op("Where", ignored, make.constant(0, dtype), make.constant(1, dtype) if w is None else w)


def _total(at: NodeSite, labels: ir.Value, w: ir.Value | None, dtype: ir.DataType) -> ir.Value:
    """The sum of w; 1 if all labels are ignored, so that the gradient is 0 as in ORT."""
    if w is None:
        # Size and its Cast would run on the CPU, which a CUDA graph may not contain.
        return at.op("ReduceSum", at.op("Expand", at.constant(1, dtype), at.op("Shape", labels)), keepdims=0)
    total = at.op("ReduceSum", w, keepdims=0)
    return at.op("Where", at.op("Equal", total, at.constant(0, dtype)), at.constant(1, dtype), total)
