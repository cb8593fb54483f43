"""The options that append a loss function to a model."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import click

from bngrad.cli.options import option
from bngrad.cli.shell_completion import complete_files

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from bngrad.training.loss_functions import LossFunction

_GROUP = "Loss function"

_OPTIONS = (
    option(
        "--loss-fn",
        type=click.Choice(["cross_entropy", "mse", "l1", "bce_with_logits"]),
        group=_GROUP,
        help="[Loss function](../guides/losses.md) to append to MODEL, if it has no loss: of its output and a new "
        "input.",
    ),
    option(
        "--prediction",
        metavar="NAME",
        group=_GROUP,
        help="Value that the loss function is computed of.  [default: the only float output]",
    ),
    option(
        "--reduction",
        type=click.Choice(["mean", "sum"]),
        group=_GROUP,
        help="Reduction of the loss function over samples or elements.  [default: mean]",
    ),
    option("--label-smoothing", type=float, group=_GROUP, help="For cross_entropy, from 0 to 1.  [default: 0]"),
    option("--ignore-index", type=int, group=_GROUP, help="Label that cross_entropy ignores.  [default: -100]"),
    option(
        "--class-weights",
        metavar="FILE.npy",
        shell_complete=complete_files(".npy"),
        group=_GROUP,
        help="Weight of each class for cross_entropy, or of each element for bce_with_logits.",
    ),
    option(
        "--pos-weight",
        metavar="VALUE",
        shell_complete=complete_files(".npy"),
        group=_GROUP,
        help="Weight of positive targets for bce_with_logits: a number or a .npy file.",
    ),
)


def loss_fn_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options to a command, which takes ``loss_fn``, a `LossFunction` or None, and ``prediction``."""

    @functools.wraps(command)
    def call(
        *,
        loss_fn: str | None,
        reduction: str | None,
        label_smoothing: float | None,
        ignore_index: int | None,
        class_weights: str | None,
        pos_weight: str | None,
        **options: Any,  # noqa: ANN401 - passed through
    ) -> Any:  # noqa: ANN401
        given = {
            "reduction": reduction,
            "label_smoothing": label_smoothing,
            "ignore_index": ignore_index,
            "weight": None if class_weights is None else _load_array(class_weights),
            "pos_weight": None if pos_weight is None else _number_or_array(pos_weight),
        }
        return command(loss_fn=_loss_function(loss_fn, given), **options)

    for decorate in reversed(_OPTIONS):
        call = decorate(call)
    return call


def _loss_function(name: str | None, options: dict[str, Any]) -> LossFunction | None:
    from bngrad.errors import InputError
    from bngrad.training.loss_functions import loss_function

    if name is not None:
        return loss_function(name, **options)
    for argument, value in options.items():
        if value is not None:
            raise InputError(f"{argument} is an option of a loss function; add --loss-fn")
    return None


def _number_or_array(text: str) -> float | NDArray[np.generic]:
    try:
        return float(text)
    except ValueError:
        return _load_array(text)


def _load_array(path: str) -> NDArray[np.generic]:
    """Reads an array from a .npy file.

    Raises:
        InputError: The file cannot be read, or is no .npy file.
    """
    import numpy as np

    from bngrad.io.arrays import load_array

    return np.array(load_array(path))
