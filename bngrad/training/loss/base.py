"""The base class of loss functions."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from bngrad.arguments import require_choice
from bngrad.opset.known_shapes import type_text

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.opset.known_shapes import KnownShape
    from bngrad.training.loss.nodes import LossNodes

Reduction = Literal["mean", "sum"]
"""From the losses of the elements or samples to a scalar."""


@dataclass(frozen=True, eq=False)
class LossFunction(abc.ABC):
    """A loss of a prediction and a target, with the semantics of a function of PyTorch."""

    name: ClassVar[str]
    """The name on the command line."""
    takes_labels: ClassVar[bool] = False
    """True if the target is class labels in int64; otherwise it has the prediction's type."""
    normalizes: ClassVar[tuple[str, ...]] = ()
    """The ops that must not come before the loss, which applies such a function itself."""

    reduction: Reduction = "mean"

    def __post_init__(self) -> None:
        """Checks the options.

        Raises:
            InputError: An option has an impossible value.
        """
        require_choice("reduction", self.reduction, get_args(Reduction))

    def target_shape(self, prediction: ir.Value, shape: KnownShape) -> KnownShape:  # noqa: ARG002 - for messages
        """Returns the shape of the target.

        Raises:
            InputError: An option does not fit the prediction.
            ModelError: The loss is not defined for such a prediction.
        """
        return shape

    @abc.abstractmethod
    def append(self, make: LossNodes, x: ir.Value, target: ir.Value) -> ir.Value:
        """Adds the nodes of the loss of a float or double prediction, and returns the loss."""

    def _reduced(self, make: LossNodes, losses: ir.Value) -> ir.Value:
        return make.op(f"Reduce{self.reduction.capitalize()}", losses, keepdims=0)


def typed(value: ir.Value) -> str:
    """The name, type and shape of a value, for messages."""
    return f"{value.name!r} ({type_text(value)})"
