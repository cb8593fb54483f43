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


def print_warnings(messages: Iterable[str], notes: Iterable[str] = ()) -> None:
    """Prints each note and each warning as one line on stderr."""
    for kind, texts in (("note", notes), ("warning", messages)):
        for text in texts:
            click.echo(f"bngrad: {kind}: " + " ".join(text.split()), err=True)
