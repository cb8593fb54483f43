"""The losses of the table, and targets of the shape that a network's outputs have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

Outputs = torch.Tensor | tuple | list | Mapping | None


def leaves(outputs: Outputs) -> Iterator[torch.Tensor]:
    """The tensors of nested outputs."""
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, Mapping):
        for value in outputs.values():
            yield from leaves(value)
    elif outputs is not None:
        for value in outputs:
            yield from leaves(value)


def labels(outputs: Outputs, target: torch.Tensor) -> torch.Tensor:
    """Cross entropy; auxiliary outputs count 0.4."""
    parts = [F.cross_entropy(leaf, target) for leaf in leaves(outputs)]
    return parts[0] + 0.4 * sum(parts[1:]) if len(parts) > 1 else parts[0]


def logits(outputs: Outputs) -> torch.Tensor:
    """Binary cross entropy of every output with the target 0.25."""
    return sum((F.softplus(leaf) - 0.25 * leaf).mean() for leaf in leaves(outputs))


def values(outputs: Outputs, target: torch.Tensor) -> torch.Tensor:
    """The mean squared error of the first output; the mean of the others is added."""
    first, *others = leaves(outputs)
    return F.mse_loss(first, target) + 0.1 * sum(other.mean() for other in others)


def similarity(outputs: Outputs, target: torch.Tensor) -> torch.Tensor:
    """Pairs that are alike, 1, or not, -1."""
    left, right = outputs
    return F.cosine_embedding_loss(left, right, target, margin=0.1)


def triplet(outputs: Outputs) -> torch.Tensor:
    """Anchors are nearer to the second than to the third, by a margin."""
    return F.triplet_margin_loss(*outputs, margin=1.0)


def byol(outputs: Outputs) -> torch.Tensor:
    """The cosine of predictions and targets."""
    first, second, first_target, second_target = outputs
    return -F.cosine_similarity(first, first_target).mean() - F.cosine_similarity(second, second_target).mean()


def ctc(outputs: Outputs, target: torch.Tensor) -> torch.Tensor:
    """Connectionist temporal classification, blank 0."""
    lengths = [torch.full((outputs.shape[1],), n, dtype=torch.int64) for n in (outputs.shape[0], target.shape[1])]
    return F.ctc_loss(outputs, target, *lengths)


LOSSES: dict[str, Callable] = {
    function.__name__: function for function in (labels, logits, values, similarity, triplet, byol, ctc)
}


def targets(loss: str, outputs: Outputs) -> tuple[torch.Tensor, ...]:
    """Random targets for a loss."""
    first = next(leaves(outputs))
    if loss == "labels":
        return (torch.randint(0, first.shape[1], (first.shape[0], *first.shape[2:])),)
    if loss == "values":
        return (torch.rand(first.shape),)
    if loss == "similarity":
        return (torch.randint(0, 2, (len(first),)) * 2 - 1,)
    if loss == "ctc":
        return (torch.randint(1, first.shape[2], (first.shape[1], 5)),)
    return ()
