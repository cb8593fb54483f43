"""The optimizers of a training step by their names."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from bngrad.arguments import require_choice
from bngrad.training.optim.adam import Adam
from bngrad.training.optim.adamw import AdamW
from bngrad.training.optim.base import Optimizer
from bngrad.training.optim.groups import ParameterGroup
from bngrad.training.optim.lion import Lion
from bngrad.training.optim.rmsprop import RMSprop
from bngrad.training.optim.sgd import SGD

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["OPTIMIZERS", "Optimizer", "ParameterGroup", "hyperparameters", "make_optimizer"]

OPTIMIZERS: Mapping[str, type[Optimizer]] = {kind.name: kind for kind in (SGD, Adam, AdamW, RMSprop, Lion)}
"""The optimizers by their names."""


def make_optimizer(optimizer: str | Optimizer) -> Optimizer:
    """Returns an optimizer; a name stands for one with its default hyperparameters.

    Raises:
        InputError: There is no such optimizer.
    """
    if isinstance(optimizer, Optimizer):
        return optimizer
    require_choice("optimizer", optimizer, OPTIMIZERS)
    return OPTIMIZERS[optimizer]()


def hyperparameters(optimizer: Optimizer) -> dict[str, Any]:
    """The name and the hyperparameters of an optimizer, for the metadata of a step."""
    return {"name": optimizer.name, **asdict(optimizer)}
