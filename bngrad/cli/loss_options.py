"""The options that append a loss function to a model."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, get_args

import click

from bngrad.cli.described_options import DescribedOptions
from bngrad.cli.options import option
from bngrad.graph.name_messages import phrase
from bngrad.training.loss.base import Reduction
from bngrad.training.loss_functions import LOSS_FUNCTIONS, loss_function

if TYPE_CHECKING:
    from collections.abc import Callable

_GROUP = "Loss function"

_OWN = DescribedOptions(LOSS_FUNCTIONS, _GROUP, "--loss-fn")

_OPTIONS = (
    option(
        "--loss-fn",
        type=click.Choice(list(LOSS_FUNCTIONS)),
        metavar="NAME",  # all names would be wider than a terminal
        group=_GROUP,
        help="[Loss function](../guides/losses.md) to append to MODEL, if it has no loss: of its output and a new "
        f"input. {phrase(list(LOSS_FUNCTIONS), 'or')}.",
    ),
    option(
        "--prediction",
        metavar="NAME",
        group=_GROUP,
        help="Value passed to the loss function.  [default: the only float output]",
    ),
    option(
        "--reduction",
        type=click.Choice(get_args(Reduction)),
        group=_GROUP,
        help="Reduction of the loss function over samples or elements.  [default: mean]",
    ),
    *_OWN.options,
)


def loss_fn_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options to a command, which takes ``loss_fn``, a `LossFunction` or None, and ``prediction``."""

    @functools.wraps(command)
    def call(*, loss_fn: str | None, **options: Any) -> Any:  # noqa: ANN401 - passed through
        reduction, own = options.pop("reduction"), _OWN.pop_from(options, loss_fn)
        if loss_fn is None and reduction is not None:
            raise click.UsageError("--reduction has no effect alone; expected --loss-fn")
        loss = None if loss_fn is None else loss_function(loss_fn, reduction=reduction, **own)
        return command(loss_fn=loss, **options)

    for decorate in reversed(_OPTIONS):
        call = decorate(call)
    return call
