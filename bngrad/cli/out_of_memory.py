"""A command that has no memory left gives back what it holds before its error goes on.

CPython keeps a number of where it was for each block that an error leaves; without memory for it, it tries for
ever (3.11's ceval.c). It has numbers up to 256 at hand, but click's functions are longer; and the error's
traceback holds all that the command had.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import click

from bngrad.cli.causes import came_of

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")

_RESERVE = 1 << 20
"""Bytes that are there for what has to be done without memory; as many as CPython asks the system for at once."""


class Commands(click.Group):
    """A group of commands each of which gives back what it holds where memory ends."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Takes a command into the group."""
        if cmd.callback is not None:
            cmd.callback = _giving_back(cmd.callback)
        super().add_command(cmd, name)


def _giving_back(command: Callable[P, T]) -> Callable[P, T]:
    """Raises a MemoryError that holds nothing, where the command would raise one or what was made of one.

    With --debug (the context's object) it goes on as it is: its traceback is what was asked for.
    """

    @functools.wraps(command)
    def call(*arguments: P.args, **options: P.kwargs) -> T:
        reserve = [bytearray(_RESERVE)]
        try:
            return command(*arguments, **options)
        except Exception as error:
            reserve.clear()
            if click.get_current_context().obj or not came_of(error, MemoryError):
                raise
        raise MemoryError

    return call
