"""Softmax and the losses of class labels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from bngrad.torch.autograd.table import op

_NONE = -100
"""The label that PyTorch ignores by default, for losses that ignore none."""


@op("Softmax", since=13)
def softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    """exp(x) over its sum."""
    return torch.softmax(x, axis)


@op("LogSoftmax", since=13)
def log_softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    """The logarithm of softmax."""
    return torch.log_softmax(x, axis)


@op("Hardmax", since=13)
def hardmax(x: Tensor, *, axis: int = -1) -> Tensor:
    """1 at the first of the largest elements, else 0; without a gradient."""
    return torch.zeros_like(x).scatter(axis, x.argmax(axis, keepdim=True), 1.0)


@op("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    *,
    ignore_index: int = _NONE,
    reduction: str = "mean",
) -> tuple[Tensor, Tensor]:
    """The loss, and the logarithm of softmax."""
    log_prob = torch.log_softmax(scores, 1)
    return _loss(log_prob, labels, weights, ignore_index, reduction), log_prob


@op("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(
    log_prob: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    *,
    ignore_index: int = _NONE,
    reduction: str = "mean",
) -> Tensor:
    """The negative elements of the labels, weighted by class."""
    return _loss(log_prob, labels, weights, ignore_index, reduction)


def _loss(log_prob: Tensor, labels: Tensor, weights: Tensor | None, ignored: int, reduction: str) -> Tensor:
    labels = labels.long()
    if weights is None or not weights.requires_grad:
        # Its backward pass refuses some layouts that its forward pass accepts.
        scores = log_prob.contiguous()
        return functional.nll_loss(scores, labels, weights, ignore_index=ignored, reduction=reduction)
    # PyTorch has no gradient with respect to the weights.
    kept = labels != ignored
    chosen = torch.where(kept, labels, 0)
    label_weights = torch.where(kept, weights[chosen], 0.0)
    losses = -label_weights * log_prob.gather(1, chosen.unsqueeze(1)).squeeze(1)
    if reduction == "none":
        return losses
    return losses.sum() / label_weights.sum() if reduction == "mean" else losses.sum()
