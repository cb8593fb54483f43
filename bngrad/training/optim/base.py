"""The base class of optimizers."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.training.optim.groups import WeightOptions
    from bngrad.training.optim.nodes import UpdateNodes, Weight


@dataclass(frozen=True, kw_only=True)
class Optimizer(abc.ABC):
    """An optimizer of a training step, whose fields are its hyperparameters.

    The learning rate is not a hyperparameter: the training step takes it as an input.
    """

    name: ClassVar[str]
    """The name on the command line."""
    torch: ClassVar[str | None] = None
    """The class of `torch.optim` with the same formula, hyperparameters and state; None if there is none."""
    torch_counts: ClassVar[bool] = False
    """True if that class keeps the number of updates of each weight."""
    second_moment: ClassVar[str | None] = None
    """The slot whose square root an update divides by."""

    group_op: ClassVar[str]
    """The op that makes the updates of many weights, by the same formula."""

    @property
    @abc.abstractmethod
    def weight_decay(self) -> float:
        """The weight decay; parameter groups may give weights another."""

    @property
    def slots(self) -> tuple[str, ...]:
        """The tensors of the state for each weight, by PyTorch's names if it has the optimizer; zeros at first."""
        return ()

    @abc.abstractmethod
    def update(self, nodes: UpdateNodes, weight: Weight) -> list[ir.Value]:
        """Adds the nodes of an update; returns the new value of a weight, then those of its slots."""

    def group_scalars(self, nodes: UpdateNodes, weight: Weight) -> list[ir.Value]:
        """Returns the inputs of ``group_op`` before its condition, for weights with the options of one."""
        return nodes.scalars(weight)

    def group_attributes(self, options: WeightOptions) -> dict[str, float]:  # noqa: ARG002 - for subclasses
        """Returns the attributes of ``group_op`` for weights with some options."""
        return {}
