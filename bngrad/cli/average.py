"""``bngrad average``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bngrad.cli.console import count_text, print_json
from bngrad.cli.help import Command
from bngrad.cli.options import option, options_of
from bngrad.cli.shell_completion import complete_files
from bngrad.reports.visible import visible
from bngrad.training.batch_norm_options import AverageOptions

if TYPE_CHECKING:
    from bngrad.cli.documents import AverageDocument


@click.command(
    "average",
    cls=Command,
    examples="""
        $ bngrad average a.safetensors b.safetensors -o round1.safetensors
        $ bngrad average a.safetensors b.safetensors -o for_a.safetensors \\
            --weights 1437,360 --fedbn --own a.safetensors
    """,
)
@click.argument(
    "states",
    metavar="STATE...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
    shell_complete=complete_files(".safetensors"),
)
@option(
    "-o",
    "--output",
    required=True,
    type=click.Path(),
    help="File to write the average to, a state (.safetensors).",
)
@option(
    "--weights",
    metavar="N,N,...",
    help="Number of samples of each client, or other weights.  [default: those that the files record]",
)
@option(
    "--own",
    type=click.Path(path_type=Path),
    metavar="STATE",
    shell_complete=complete_files(".safetensors"),
    help="The one of the states that the result is for, if some of its tensors stay.",
)
@options_of(AverageOptions)
def average_command(
    states: tuple[Path, ...],
    output: str,
    weights: str | None,
    own: Path | None,
    as_json: bool,
    **options: Any,  # noqa: ANN401 - fields of AverageOptions
) -> None:
    """Average the states of federated clients.

    Each STATE is what a client trained from one [training step](training-step.md), with data of its own: a file of
    `bngrad train --state-out` or `--checkpoint`, or of `Trainer.save`. The weights of the clients are the numbers
    of their samples. The output is a state for the next round: `Trainer.load` takes it, and beside the step, as
    STEP.safetensors, it is the initial state of `bngrad train`.

    Running statistics are those of the union of the data, by the law of total variance. States of different steps,
    and a state that is not finite, are refused.

    Documentation: [Federated training](../guides/federated.md).
    """
    from bngrad.errors import InputError
    from bngrad.federated import average
    from bngrad.io.writing import check_output

    path = check_output(output)
    if own is not None and own not in states:
        raise InputError(f"--own {own} is not one of the states; expected one of them")
    result = average(
        states,
        _numbers(weights),
        own=None if own is None else states.index(own),
        path=path,
        **options,
    )
    shares = result.document["notes"]["weights"]
    if as_json:
        document: AverageDocument = {
            "states": [str(state) for state in states],
            "weights": shares,
            "output": str(path),
            "tensors": len(result),
        }
        print_json(document)
    else:
        kinds, tensors = count_text(len(states), "state"), count_text(len(result), "tensor")
        click.echo(visible(f"{path}: the average of {kinds}, {tensors} each"))
        total = sum(shares)
        for state, share in zip(states, shares, strict=True):
            click.echo(visible(f"  {state}: weight {share:g}, {share / total:.2%}"))


def _numbers(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        raise click.BadParameter(
            f"--weights is {text!r}; expected numbers with commas between, as 1437,360"
        ) from None
