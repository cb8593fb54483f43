"""Writes PyTorch's cross entropy in smaller ops, where its exporter has it wrong.

`torch.onnx.export` makes every one of them a SoftmaxCrossEntropyLoss: without label smoothing, with targets that
are probabilities as if they were labels, and, without reduction, with the shape of a scalar.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_SIGNATURE = inspect.signature(functional.cross_entropy)


class CrossEntropyInOps(TorchFunctionMode):
    """While it is active, `torch.nn.functional.cross_entropy` is `cross_entropy` where the exporter needs that."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Calls a function of PyTorch."""
        kwargs = dict(kwargs or {})
        if func is functional.cross_entropy:
            bound = _SIGNATURE.bind(*args, **kwargs)
            bound.apply_defaults()
            given = bound.arguments
            plain = given["reduction"] in ("mean", "sum") and not given["label_smoothing"]
            labels = not given["target"].is_floating_point() and given["input"].ndim > 1
            if not (plain and labels) and given["size_average"] is None and given["reduce"] is None:
                return cross_entropy(
                    given["input"],
                    given["target"],
                    given["weight"],
                    given["ignore_index"],
                    given["reduction"],
                    given["label_smoothing"],
                )
        return func(*args, **kwargs)


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
