"""Console output of the commands: tables on stdout, warnings on stderr."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

_WIDE = 10_000


def stdout_console() -> Console:
    """Returns a console for stdout; in a file or a pipe, lines are not cut to a terminal's width."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDE)


def print_warnings(messages: Iterable[str]) -> None:
    """Prints each warning as one line on stderr."""
    for message in messages:
        click.echo("bngrad: warning: " + " ".join(message.split()), err=True)
