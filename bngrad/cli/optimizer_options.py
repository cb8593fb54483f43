"""The options that choose an optimizer and its hyperparameters."""

from __future__ import annotations

import functools
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from bngrad.cli.described_options import DescribedOptions
from bngrad.cli.options import option, option_name
from bngrad.graph.name_messages import phrase
from bngrad.training.optimizers import OPTIMIZERS
from bngrad.training.options import OPTIMIZER

if TYPE_CHECKING:
    from collections.abc import Callable

    from bngrad.training.optimizers import Optimizer

_OWN = DescribedOptions(OPTIMIZERS, OPTIMIZER)

_OPTIMIZER_OPTION = option(
    "--optimizer",
    type=click.Choice(list(OPTIMIZERS)),
    default="sgd",
    show_default=True,
    group=OPTIMIZER,
    help="[Optimizer](training-step.md#optimizers). The learning rate is an input of the step.",
)


def optimizer_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options to a command, which takes ``optimizer``, an `Optimizer`."""

    @functools.wraps(command)
    def call(*, optimizer: str, **options: Any) -> Any:  # noqa: ANN401 - passed through
        values = {name: value for name, value in _OWN.pop_from(options).items() if value is not None}
        return command(optimizer=_optimizer(optimizer, values), **options)

    for decorate in reversed((_OPTIMIZER_OPTION, *_OWN.options)):
        call = decorate(call)
    return call


def _optimizer(name: str, options: dict[str, Any]) -> Optimizer:
    """Returns the optimizer with some hyperparameters.

    Raises:
        click.UsageError: It has no such hyperparameter.
    """
    for key in options:
        having = [other for other, kind in OPTIMIZERS.items() if key in [field.name for field in fields(kind)]]
        if name not in having:
            raise click.UsageError(
                f"{option_name(key)} is not an option of {name}; expected --optimizer {phrase(having, 'or')}"
            )
    return OPTIMIZERS[name](**options)
