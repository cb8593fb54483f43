"""What a loss over class labels gives each sample, for the gradients of NegativeLogLikelihoodLoss and its like.

loss_i = -w_i log_prob_i[label_i], where w_i is the weight of the class, and 0 for a label that is ignored; then
their sum, or their mean: the sum divided by the sum of w.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import onnx_ir as ir

from bngrad.errors import UnsupportedNodeError
from bngrad.passes.glue import statistics_dtype
from bngrad.passes.nodes import describe

if TYPE_CHECKING:
    from bngrad.autodiff.backward import Backward
    from bngrad.passes.lower.site import Site

_REDUCTIONS = ("none", "sum", "mean")


class Labels(NamedTuple):
    """What the samples of a loss have, in shapes that broadcast over dimension 1, the classes."""

    classes: ir.Value
    """The label of each sample, int64; some class where it is ignored, for what is done there comes to nothing."""
    share: ir.Value
    """dY w / (sum of w, for the mean) of each sample, or a scalar where all have the same."""
    dtype: ir.DataType
    """The type of the share: sums of weights do not fit 16 bits."""


def read_labels(
    at: Backward | Site, dY: ir.Value, scores: ir.Value, labels: ir.Value, weights: ir.Value | None
) -> Labels:
    """Makes the nodes that read the labels of a loss.

    Args:
        at: The node, with the attributes ``ignore_index`` and ``reduction``.
        dY: The gradient of the loss: a scalar, or for reduction ``none`` that of each sample.
        scores: What was selected from, with the classes in dimension 1.
        labels: int32 or int64; the shape of scores without the classes.
        weights: The weight of each class.
    """
    dtype = statistics_dtype(scores)
    classes, w = at.cast(labels, ir.DataType.INT64), None
    reduction = at.attribute("reduction", "mean")
    if reduction not in _REDUCTIONS:
        raise UnsupportedNodeError(
            f"{describe(at.node)} has reduction {reduction!r}; expected one of {', '.join(_REDUCTIONS)}"
        )
    ignore_index = at.attribute("ignore_index", 0) if "ignore_index" in at.node.attributes else None
    ignored = None if ignore_index is None else at.op("Equal", classes, at.int64(ignore_index))
    if ignored is not None:
        classes = at.op("Where", ignored, at.int64(0), classes)
    if weights is not None:
        w = at.op("Gather", at.cast(weights, dtype), classes)
    if ignored is not None:
        w = at.op("Where", ignored, at.constant(0, dtype), at.constant(1, dtype) if w is None else w)
    share = at.cast(dY, dtype)
    if reduction == "mean":
        share = at.op("Div", share, _total(at, labels, w, dtype))
    if w is not None:
        share = at.op("Mul", share, w)
    if w is not None or reduction == "none":
        share = at.op("Unsqueeze", share, at.int64([1]))
    share.dtype = dtype
    return Labels(at.op("Unsqueeze", classes, at.int64([1])), share, dtype)


def _total(at: Backward | Site, labels: ir.Value, w: ir.Value | None, dtype: ir.DataType) -> ir.Value:
    """The sum of w; 1 where all labels are ignored, so that the gradient is 0, as ORT has it."""
    if w is None:
        return at.op("Cast", at.op("Size", labels), to=int(dtype))
    total = at.op("ReduceSum", w, keepdims=0)
    return at.op("Where", at.op("Equal", total, at.constant(0, dtype)), at.constant(1, dtype), total)
