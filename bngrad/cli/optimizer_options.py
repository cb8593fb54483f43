"""The options that choose an optimizer and its hyperparameters."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import click

from bngrad.cli.described_options import DescribedOptions
from bngrad.cli.options import option
from bngrad.training.optimizers import OPTIMIZERS
from bngrad.training.options import OPTIMIZER

if TYPE_CHECKING:
    from collections.abc import Callable

_OWN = DescribedOptions(OPTIMIZERS, OPTIMIZER, "--optimizer")

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
        values = _OWN.pop_from(options, optimizer)
        return command(optimizer=OPTIMIZERS[optimizer](**values), **options)

    for decorate in reversed((_OPTIMIZER_OPTION, *_OWN.options)):
        call = decorate(call)
    return call
