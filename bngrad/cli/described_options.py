"""Options of the command line from the fields of loss functions or optimizers."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from bngrad.cli.options import option, option_name
from bngrad.cli.shell_completion import complete_files
from bngrad.graph.name_messages import phrase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from dataclasses import Field


def _load_array(_context: click.Context, _parameter: click.Parameter, path: str | None) -> Any:  # noqa: ANN401
    """Reads an array from a .npy file.

    Raises:
        InputError: The file cannot be read, or is no .npy file.
    """
    import numpy as np

    from bngrad.io.arrays import load_array

    return None if path is None else np.array(load_array(path))


def _number_or_array(context: click.Context, parameter: click.Parameter, text: str | None) -> Any:  # noqa: ANN401
    try:
        return None if text is None else float(text)
    except ValueError:
        return _load_array(context, parameter, text)


_ARRAYS = {"FILE.npy": _load_array, "VALUE": _number_or_array}
"""The functions that read values other than numbers, by their placeholders."""


class DescribedOptions:
    """The options that dataclasses have; those that all have are last.

    Args:
        kinds: The dataclasses by their names.
        group: The title of the group of options.
        selector: The option that names the dataclass.
    """

    def __init__(self, kinds: Mapping[str, Any], group: str, selector: str) -> None:
        having: dict[str, dict[str, Field[Any]]] = {}
        for name, kind in kinds.items():
            for field in fields(kind):
                if field.metadata:
                    having.setdefault(field.name, {})[name] = field
        ordered = sorted(having, key=lambda name: len(having[name]) == len(kinds))
        self._names = {field: _name(field, next(iter(having[field].values()))) for field in ordered}
        self._kinds, self._selector = {field: list(having[field]) for field in ordered}, selector
        self.options = [_option(self._names[field], having[field], group) for field in ordered]
        """The decorators that add the options to a command."""

    def pop_from(self, parameters: dict[str, Any], kind: str | None) -> dict[str, Any]:
        """Takes the values from the parameters of a command, and returns those that are set, by the fields.

        Args:
            parameters: The parameters; they lose the values.
            kind: The name of the dataclass that they are for; None for none.

        Raises:
            click.UsageError: The dataclass has no such field.
        """
        values = {field: parameters.pop(name[2:].replace("-", "_")) for field, name in self._names.items()}
        values = {field: value for field, value in values.items() if value is not None}
        for field in values:
            if kind not in (having := self._kinds[field]):
                lacks = "" if kind is None else f"is not an option of {kind}; "
                raise click.UsageError(
                    f"{self._names[field]} {lacks or 'has no effect alone; '}expected {self._selector} "
                    f"{phrase(having, 'or')}"
                )
        return values


def _name(field: str, first: Field[Any]) -> str:
    """Returns the option of a field on the command line."""
    return str(first.metadata["command_line"] or option_name(field))


def _option(name: str, having: Mapping[str, Field[Any]], group: str) -> Callable[..., Any]:
    """Returns the option of the fields of one name."""
    first = next(iter(having.values()))
    metavar = first.metadata["metavar"]
    attributes: dict[str, Any] = {"type": type(first.default)}
    if metavar is not None:
        attributes = {"metavar": metavar, "callback": _ARRAYS[metavar], "shell_complete": complete_files(".npy")}
    elif isinstance(first.default, bool):
        attributes = {"is_flag": True, "default": None}
    return option(name, group=group, help=_help(having), **attributes)


def _help(having: Mapping[str, Field[Any]]) -> str:
    """Returns the meanings of an option, and its default values, with the names of those that have each."""
    texts: dict[str, list[str]] = {}
    defaults: dict[str, list[str]] = {}
    for name, field in having.items():
        texts.setdefault(field.metadata["help"], []).append(name)
        if field.default is not None and not isinstance(field.default, bool):
            defaults.setdefault(f"{field.default:g}", []).append(name)
    first, *others = (text.format(phrase(names)) for text, names in texts.items())
    meaning = "; ".join([first, *(f"{text[0].lower()}{text[1:]}" for text in others)])
    if not defaults:
        return f"{meaning}."
    usual = max(defaults, key=lambda value: len(defaults[value]))
    special = [f"{value} for {', '.join(names)}" for value, names in defaults.items() if value != usual]
    return f"{meaning}.  [default: {', '.join([*special, f'else {usual}' if special else usual])}]"
