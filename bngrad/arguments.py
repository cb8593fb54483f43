"""Run-time checks of arguments, for callers who do not use a type checker."""

from __future__ import annotations

import functools
from numbers import Real
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from bngrad.errors import InputError, warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

P = ParamSpec("P")
R = TypeVar("R")


def require_choice(argument: str, value: str | None, choices: Iterable[str]) -> None:
    """Checks that an argument's value is one of the choices.

    Raises:
        InputError: The value is not one of the choices; the message lists them.
    """
    choices = list(choices)
    if value not in choices:
        raise InputError(f"{argument} is {value!r}; expected one of {', '.join(choices)}")


def require_number(argument: str, value: object, expected: str = "a number") -> float:
    """Returns a number of any type, also of NumPy's, as a float.

    Raises:
        InputError: It is not a real number, or beyond the range of a float.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(f"{argument} is {value!r}; expected {expected}")
    try:
        return float(value)
    except OverflowError:
        raise InputError(f"{argument} is beyond the range of a float; expected {expected}") from None


def is_count(value: object, least: int) -> bool:
    """Tests whether an argument is an int, not a bool, of at least a number."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def require_names(**arguments: Sequence[str] | None) -> None:
    """Checks that arguments are sequences of names, and not a string.

    Raises:
        InputError: An argument is a string, or has something else than strings.
    """
    for argument, value in arguments.items():
        if isinstance(value, str):
            raise InputError(
                f"{argument} is the string {value!r}; expected a sequence of names, such as [{value!r}]"
            )
        wrong = [name for name in value or () if not isinstance(name, str)]
        if wrong:
            raise InputError(f"{argument} has {wrong[0]!r}; expected names")


def require_no_mask(name: str, array: object) -> None:
    """Checks that an array is not a masked one, whose mask `numpy.asarray` would drop.

    Raises:
        InputError: It is.
    """
    if hasattr(array, "mask") and hasattr(array, "filled"):
        raise InputError(f"{name!r} is a masked array; expected an array without a mask, such as {name}.filled(0)")


def renamed_keyword(old: str, new: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Lets a function take a keyword by its old name, too, with a warning for the caller.

    Raises:
        InputError: In a call, both names are given.
    """

    def accept_both(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def renamed(*arguments: P.args, **keywords: P.kwargs) -> R:
            if old in keywords:
                if new in keywords:
                    raise InputError(f"{new} and {old}, its old name, are both given; expected {new}")
                message = f"the keyword {old} is deprecated and will be removed in the next version; use {new}"
                warn([message], DeprecationWarning)
                keywords[new] = keywords.pop(old)
            return function(*arguments, **keywords)

        return renamed

    return accept_both
