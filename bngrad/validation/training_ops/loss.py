"""Losses over class labels, and the gradients of Softmax and LogSoftmax.

The losses are implemented here because of errors in onnx's reference evaluator. Its SoftmaxCrossEntropyLoss takes
the logarithm of the softmax, which is -inf for an improbable class. Its NegativeLogLikelihoodLoss takes the mean
over all labels if those of -1 are ignored, and loops over the elements in Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from bngrad.validation.training_ops._types import Array, Integers


def softmax_cross_entropy_loss(
    scores: Array,
    labels: Integers,
    weights: Array | None = None,
    *,
    reduction: str = "mean",
    ignore_index: int | None = None,
) -> tuple[Array, Array]:
    """Returns loss = -w * log_prob[label] and log_prob, the log softmax over axis 1.

    w = weights[label], or 1 without weights; 0 where label = ignore_index. The reduction mean divides by the sum
    of w.
    """
    shifted = scores - scores.max(axis=1, keepdims=True)
    log_prob = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    loss = negative_log_likelihood_loss(log_prob, labels, weights, reduction=reduction, ignore_index=ignore_index)
    return loss, log_prob


def negative_log_likelihood_loss(
    log_prob: Array,
    labels: Integers,
    weights: Array | None = None,
    *,
    reduction: str = "mean",
    ignore_index: int | None = None,
) -> Array:
    """Returns loss = -w * log_prob[label]; the reduction mean divides by the sum of w."""
    classes, w = _classes_and_weights(labels, weights, log_prob, ignore_index)
    loss: Array = -w * np.take_along_axis(log_prob, classes[:, None], axis=1)[:, 0]
    if reduction != "none":
        loss = np.asarray(loss.sum() / (w.sum() if reduction == "mean" else 1))
    return loss


def softmax_cross_entropy_loss_grad(
    dY: Array,
    log_prob: Array,
    labels: Integers,
    weights: Array | None = None,
    *,
    reduction: str = "mean",
    ignore_index: int | None = None,
) -> Array:
    """Returns dX = dY * w * (exp(log_prob) - onehot(label)); the reduction mean divides by the sum of w.

    If all labels are ignored, dX is 0, although the loss is 0 / 0.
    """
    classes, w = _classes_and_weights(labels, weights, log_prob, ignore_index)
    scale = dY * w / ((w.sum() or 1) if reduction == "mean" else 1)
    dX = np.exp(log_prob)
    index = classes[:, None]
    np.put_along_axis(dX, index, np.take_along_axis(dX, index, axis=1) - 1, axis=1)
    return scale[:, None] * dX


def softmax_grad(dY: Array, Y: Array, *, axis: int = -1) -> Array:
    """Returns dX = Y * (dY - sum over axis of dY * Y)."""
    projection: Array = (dY * Y).sum(axis=axis, keepdims=True)
    return Y * (dY - projection)


def log_softmax_grad(dY: Array, Y: Array, *, axis: int = -1) -> Array:
    """Returns dX = dY - exp(Y) * sum over axis of dY."""
    total: Array = dY.sum(axis=axis, keepdims=True)
    return dY - np.exp(Y) * total


def _classes_and_weights(
    labels: Integers, weights: Array | None, like: Array, ignore_index: int | None
) -> tuple[Integers, Array]:
    """Returns the labels, with a valid class in place of ignored ones, and their weights, 0 for ignored ones."""
    kept = np.ones(labels.shape, bool) if ignore_index is None else labels != ignore_index
    classes = np.where(kept, labels, 0)
    w = np.ones(labels.shape, like.dtype) if weights is None else weights[classes]
    return classes, np.where(kept, w, 0)
