"""Options as fields of dataclasses: the name, type, default and help text of an option are in its field.

The command line builds its options from the fields (`bngrad.cli.options.options_of`). The public functions take
them as keywords, for which type checkers need a TypedDict beside the dataclass. Inside, it is passed whole.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import field, fields
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from bngrad.arguments import require_choice, require_names
from bngrad.errors import InputError

GENERAL, BATCH_NORMS, OUTPUT = "Options", "Batch norms", "Output"
"""Titles of groups of options."""

F = TypeVar("F", bound=Callable[..., Any])


def option(
    default: Any,  # noqa: ANN401 - of the type of the field
    text: str = "",
    *,
    group: str = GENERAL,
    metavar: str | None = None,
    minimum: int | None = None,
    command_line: str | None = None,
    called: str | None = None,
) -> Any:  # noqa: ANN401
    """Returns a field of a dataclass of options.

    Args:
        default: The default.
        text: The help text on the command line, see `bngrad.cli.help`; without one no command has the option.
        group: The title of the options that it is listed with.
        metavar: The placeholder for its value.
        minimum: The least number.
        command_line: The option of a command, if it is not the name of the field.
        called: The name in messages, if it is not that of the field.
    """
    attributes = {"help": text, "group": group, "metavar": metavar, "minimum": minimum}
    return field(default=default, metadata={**attributes, "command_line": command_line, "called": called})


def value_type(type_: Any) -> Any:  # noqa: ANN401 - types have no type
    """Returns the type of an option's values: the first of a union."""
    return get_args(type_)[0] if get_origin(type_) in (Union, UnionType) else type_


def other_types(type_: Any) -> tuple[type, ...]:  # noqa: ANN401 - types have no type
    """Returns the types of an option's values after the first of a union."""
    return get_args(type_)[1:] if get_origin(type_) in (Union, UnionType) else ()


class Options:
    """Checks the values of a dataclass of options.

    Raises:
        InputError: A value is not one of the choices, or is a string instead of a sequence of names.
    """

    def __post_init__(self) -> None:
        for option in fields(self):  # type: ignore[arg-type]  # subclasses are dataclasses
            value, kind = getattr(self, option.name), value_type(option.type)
            if kind == Sequence[str]:
                if value is None and option.default is not None:
                    raise InputError(f"{option.name} is None; expected a sequence of names, which may be empty")
                require_names(**{option.name: value})
            elif get_origin(kind) is Literal and not isinstance(value, other_types(option.type)):
                require_choice(option.metadata.get("called") or option.name, value, get_args(kind))


def values_of(kind: type, options: Options) -> dict[str, Any]:
    """Returns the values of the options that a dataclass, one of their bases, has."""
    return {option.name: getattr(options, option.name) for option in fields(kind)}


def takes_keywords(options: type) -> Callable[[F], F]:
    """Gives a function that ends in ``**options`` the signature with the fields of a dataclass, for `help`."""

    def with_signature(function: F) -> F:
        signature = inspect.signature(function)
        *own, _ = signature.parameters.values()
        names = {parameter.name for parameter in own}
        keywords = [
            inspect.Parameter(
                option.name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=option.type
            )
            for option in fields(options)
            if option.name not in names
        ]
        function.__signature__ = signature.replace(parameters=[*own, *keywords])  # type: ignore[attr-defined]
        return function

    return with_signature
