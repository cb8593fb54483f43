"""Console output of the commands: tables on stdout, warnings on stderr."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import click

from bngrad.reports.visible import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.console import Console

_WIDE, _NARROW = 10_000, 20
"""The width of a file or a pipe, and the least of a terminal, which may say 0."""


def stdout_console() -> Console:
    """Returns a console for stdout, with styles in a terminal that has them.

    Colors in a file or a pipe need FORCE_COLOR. There, lines are not wrapped to a terminal's width either.
    """
    from rich.console import Console

    # NO_COLOR alone would keep bold and italic.
    plain = bool(os.environ.get("NO_COLOR"))
    width = None if sys.stdout.isatty() else _WIDE
    console = Console(highlight=False, width=width, color_system=None if plain else "auto")
    console.width = max(console.width, _NARROW)
    return console


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """Prints a result that decides the exit code, which a closed pipe, as of ``| head``, must not change."""
    try:
        yield
        sys.stdout.flush()
    except (SystemExit, BrokenPipeError):  # rich exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def count_text(number: int, noun: str, plural: str = "s") -> str:
    """Returns a number of things, "1 weight" or "1,234 weights".

    Args:
        number: The number.
        noun: The word for one.
        plural: What the word for several has in addition.
    """
    return f"{number:,} {noun}{'' if number == 1 else plural}"


def print_text(text: str) -> None:
    """Prints a line on stdout, wrapped by words in a terminal that is narrower."""
    click.echo(visible(text) if not sys.stdout.isatty() else textwrap.fill(visible(text), stdout_console().width))


def print_json(document: Mapping[str, object] | Sequence[object]) -> None:
    """Prints a JSON document on stdout; infinities and NaN, which JSON lacks, are the texts of `str`."""
    click.echo(json.dumps(_as_json(document), indent=2, allow_nan=False))


def _as_json(value: Any) -> Any:  # noqa: ANN401 - anything that JSON has
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _as_json(content) for key, content in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _as_json(value._asdict())
    return [_as_json(content) for content in value] if isinstance(value, list | tuple) else value


def print_warnings(messages: Iterable[str], notes: Iterable[str] = ()) -> None:
    """Prints each note and each warning as one line on stderr."""
    for kind, texts in (("note", notes), ("warning", messages)):
        for text in texts:
            print_line(kind, text)


def print_line(kind: str, text: str) -> None:
    """Prints one line on stderr; ``kind`` is ``error``, ``interrupted``, ``failed``, ``warning`` or ``note``."""
    click.echo(f"bngrad: {kind}: " + visible(" ".join(text.split())), err=True)
