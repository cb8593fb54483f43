"""Checks of arguments that a type checker would refuse, for callers that use none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def require_choice(what: str, given: str | None, choices: Iterable[str]) -> None:
    """Refuses a value that is not among the choices.

    Raises:
        InputError: It is not; the message lists the choices.
    """
    choices = list(choices)
    if given not in choices:
        raise InputError(f"{what} {given!r} does not exist; expected one of {', '.join(choices)}")


def require_names(**arguments: Sequence[str] | None) -> None:
    """Refuses a string where a sequence of names is expected: its characters would be taken for names.

    Raises:
        InputError: An argument is a string.
    """
    for what, given in arguments.items():
        if isinstance(given, str):
            raise InputError(f"{what} is the string {given!r}; expected a sequence of names, such as [{given!r}]")
