"""Writes PyTorch's cross entropy in smaller ops, where its exporter writes it wrongly.

`torch.onnx.export` writes each as SoftmaxCrossEntropyLoss: without label smoothing, with targets that are
probabilities as if they were labels, and, without reduction, with the shape of a scalar.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional


def cross_entropy_in_ops(
    input: torch.Tensor,  # noqa: A002 - PyTorch's name
    target: torch.Tensor,
    weight: torch.Tensor | None,
    size_average: bool | None,
    ignore_index: int,
    reduce: bool | None,
    reduction: str,
    label_smoothing: float,
) -> Any:  # noqa: ANN401 - a tensor, or NotImplemented
    """Computes the cross entropy; NotImplemented where PyTorch's exporter is right."""
    plain = reduction in ("mean", "sum") and not label_smoothing
    labels = not target.is_floating_point() and input.ndim > 1
    if (plain and labels) or size_average is not None or reduce is not None:
        return NotImplemented
    return cross_entropy(input, target, weight, ignore_index, reduction, label_smoothing)


def cross_entropy(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignore_index: int,
    reduction: str,
    smoothing: float,
) -> torch.Tensor:
    """Computes `torch.nn.functional.cross_entropy`.

    With the label smoothing e, C classes and the negative logarithms L = -w log_softmax(x)::

        loss = (1 - e) L[target] + e / C sum(L)

    for each target that is not ignored; the mean divides by the sum of their weights. Targets that are
    probabilities p have ``sum(((1 - e) p + e / C) L)``, and the mean divides by their number.
    """
    axis = 1 if x.ndim > 1 else 0
    classes = x.shape[axis]
    negative = -functional.log_softmax(x, axis)
    if weight is not None:
        negative = negative * weight.reshape([-1, *[1] * (x.ndim - 1 - axis)])
    if target.is_floating_point():
        shares = target * (1 - smoothing) + smoothing / classes
        loss = (negative * shares).sum(axis)
        return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()
    ignored = target == ignore_index
    label = target.masked_fill(ignored, 0).long()
    loss = negative.gather(axis, label.unsqueeze(axis)).squeeze(axis)
    if smoothing:
        loss = (1 - smoothing) * loss + smoothing / classes * negative.sum(axis)
    loss = loss.masked_fill(ignored, 0)
    if reduction == "none":
        return loss
    if reduction == "sum":
        return loss.sum()
    counted = torch.ones_like(loss) if weight is None else weight[label]
    return loss.sum() / counted.masked_fill(ignored, 0).sum()
