"""The loss functions by their names."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from bngrad.arguments import require_choice
from bngrad.errors import InputError
from bngrad.training.loss.base import LossFunction
from bngrad.training.loss.bce_with_logits import BCEWithLogits
from bngrad.training.loss.cross_entropy import CrossEntropy
from bngrad.training.loss.huber import Huber
from bngrad.training.loss.l1 import L1
from bngrad.training.loss.mse import MSE
from bngrad.training.loss.sigmoid_focal import SigmoidFocal

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LOSS_FUNCTIONS", "LossFunction", "loss_function"]

LOSS_FUNCTIONS: Mapping[str, type[LossFunction]] = {
    kind.name: kind for kind in (CrossEntropy, MSE, L1, Huber, BCEWithLogits, SigmoidFocal)
}
"""All loss functions, by name."""


def loss_function(name: str, **options: Any) -> LossFunction:  # noqa: ANN401 - checked by the loss function
    """Returns a loss function by its name.

    Args:
        name: A key of `LOSS_FUNCTIONS`.
        options: Its fields; those that are None are left at their defaults.

    Raises:
        InputError: There is no such loss function, it has no such option, or an option has an impossible value.
    """
    require_choice("loss function", name, LOSS_FUNCTIONS)
    kind = LOSS_FUNCTIONS[name]
    options = {option: value for option, value in options.items() if value is not None}
    expected = [field.name for field in fields(kind)]
    for option in options:
        if option not in expected:
            raise InputError(f"loss function {name} has no {option}; its options are {', '.join(expected)}")
    return kind(**options)
