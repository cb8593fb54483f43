"""The result of a dry run of `step`: the losses that a model can be trained with, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class GraphValue:
    """An input or an output of a model."""

    name: str
    """Its name."""
    dtype: str
    """Its element type; ``unknown`` if it is not known."""
    shape: str
    """Its shape, as in ``Nx3x224x224``; empty for a scalar, ``unknown`` if its rank is not known."""

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} {self.shape}".rstrip()


@dataclass(frozen=True)
class LossChoice:
    """A loss that a model can be trained with."""

    loss: str | None
    """The model's own output; None for a loss function."""
    loss_fn: str | None
    """The loss function; None for the model's own loss."""
    prediction: str | None
    """The value that the loss function takes; None for the model's own loss."""
    target: str
    """The input that the loss function adds, such as ``labels int64 N``; empty for the model's own loss."""
    command: str
    """The command that builds the training step."""


@dataclass(frozen=True)
class Trainability:
    """The result of a dry run of `step` with its default options, or with those of the commands."""

    losses: list[LossChoice]
    """The losses to choose from; the dry run takes the first."""
    decided: bool
    """True if the model decides its loss: it has one, or ends in an op that implies the loss function."""
    weights: int
    """The number of tensors that would be trained."""
    parameters: int
    """The number of their elements."""
    refusals: list[str] = field(default_factory=list)
    """The reasons for which `step` refuses the model: a line for each node, or one for the model."""
    without_gradient: dict[str, int] = field(default_factory=dict)
    """The number of nodes of each op that have no gradient, between the loss and the weights."""
