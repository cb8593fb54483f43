"""Commands that release their memory before an out-of-memory error propagates.

To unwind a block, CPython 3.11 allocates an integer for the instruction's offset and retries for ever if it cannot
(ceval.c). Integers up to 256 are preallocated, but click's functions are longer than that; and the traceback of
the error keeps all of the command's memory alive.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import click

from bngrad.cli.causes import is_caused_by

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")

_RESERVE = 1 << 20
"""Bytes reserved for handling an out-of-memory error: the size of one of CPython's arenas."""


class Commands(click.Group):
    """A command group whose commands release their memory when they run out of it."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Adds a command to the group."""
        if cmd.callback is not None:
            cmd.callback = _releasing_memory(cmd.callback)
        super().add_command(cmd, name)


def _releasing_memory(command: Callable[P, T]) -> Callable[P, T]:
    """Wraps a command so that any error caused by a MemoryError is replaced by one without a traceback.

    With --debug (the context's object) the error is not replaced, so that its traceback can be printed.
    """

    @functools.wraps(command)
    def call(*arguments: P.args, **options: P.kwargs) -> T:
        reserve = [bytearray(_RESERVE)]
        try:
            return command(*arguments, **options)
        except Exception as error:
            reserve.clear()
            if click.get_current_context().obj or not is_caused_by(error, MemoryError):
                raise
        raise MemoryError

    return call
