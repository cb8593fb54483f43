"""Arguments and options shared by several commands, and those that are fields of dataclasses."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import click

from bngrad.cli.help import Option
from bngrad.cli.shell_completion import complete_files
from bngrad.option_fields import OUTPUT, other_types, value_type

if TYPE_CHECKING:
    from dataclasses import Field

C = TypeVar("C", bound=Callable[..., Any])

DATA, REPORT = "Data", "Report"

option = functools.partial(click.option, cls=Option)

model_argument = click.argument("model", type=click.Path(path_type=Path), shell_complete=complete_files(".onnx"))

models_argument = click.argument(
    "models",
    metavar="MODEL...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
    shell_complete=complete_files(".onnx"),
)

external_data_option = option(
    "--external-data",
    type=click.Choice(["copied", "shared"]),
    group=OUTPUT,
    help="Copy the weights to OUTPUT.data (copied), or leave external data in its files, which must be in "
    "OUTPUT's folder or below it (shared). They are never read into memory.  [default: weights are stored in "
    "OUTPUT, or copied if it would exceed protobuf's 2 GB limit]",
)


def data_option(inputs: str, note: str = "", *, required: bool = True) -> Callable[[C], C]:
    """Returns the option for the files of data.

    Args:
        inputs: The inputs whose names the arrays have.
        note: A sentence more.
        required: Whether a command needs it.
    """
    return option(
        "--data",
        required=required,
        multiple=True,
        metavar="FILE.npz",
        group=DATA,
        shell_complete=complete_files(".npz", ".npy"),
        help=f"Arrays by the names of {inputs}: an .npz file, a folder of .npy files, or NAME=FILE.npy "
        f"(repeatable).{note}",
    )


sarif_option = option(
    "--sarif",
    type=click.Path(),
    metavar="FILE",
    group=REPORT,
    help="Write the findings as SARIF 2.1.0, for [code scanning](../guides/ci.md#code-scanning).",
)

annotations_option = option(
    "--annotations",
    type=click.Path(),
    metavar="FILE",
    group=REPORT,
    help="Write the findings as [annotations of GitHub Actions](../guides/ci.md#the-files).",
)


def rows_option(about: str) -> Callable[[C], C]:
    """Returns the option of the number of rows that a report shows in a terminal."""
    return option("--rows", type=click.IntRange(min=0), default=8, show_default=True, group=REPORT, help=about)


def _parse_dims(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    """Parses values of the form NAME=N."""
    dims = {}
    for value in values:
        name, _, size = value.partition("=")
        if not name or not size.isdecimal():
            raise click.BadParameter(f"{value!r} is not of the form NAME=N with an integer N")
        dims[name] = int(size)
    return dims


dims_option = option(
    "--dim",
    "dims",
    metavar="NAME=N",
    multiple=True,
    callback=_parse_dims,
    help="Size of a symbolic dimension of MODEL (repeatable).",
)


def option_name(key: str) -> str:
    """Returns the option that a parameter of a command is: ``--batch-size`` of ``batch_size``."""
    return "--" + key.replace("_", "-")


def options_of(options: type, *names: str) -> Callable[[C], C]:
    """Adds the options of a dataclass to a command; see `bngrad.option_fields.option`.

    Args:
        options: The dataclass.
        names: The fields; by default all that have a help text.
    """
    shown = [field for field in fields(options) if (field.name in names if names else field.metadata.get("help"))]

    def decorate(command: C) -> C:
        for field in reversed(shown):
            command = _option_of(field)(command)
        return command

    return decorate


class _Suggestion(click.Choice):  # type: ignore[type-arg]  # a class without parameters in click 8.1
    """Values that are completed; others are checked by the dataclass."""

    def convert(self, value: Any, _parameter: click.Parameter | None, _context: click.Context | None) -> Any:  # noqa: ANN401
        return value


def _option_of(field: Field[Any]) -> Callable[[C], C]:
    about, kind = field.metadata, value_type(field.type)
    name = about["command_line"] or option_name(field.name)
    attributes: dict[str, Any] = {key: about[key] for key in ("help", "group", "metavar")}
    attributes |= {"default": field.default, "show_default": bool(field.default) or type(field.default) is int}
    if kind is bool:
        name, attributes["is_flag"] = (f"{name}/--no-{name[2:]}", None) if field.default else (name, True)
    elif get_origin(kind) is Literal:
        attributes["type"] = (_Suggestion if str in other_types(field.type) else click.Choice)(get_args(kind))
    elif kind == Sequence[str]:
        attributes |= {"multiple": True, "show_default": False}
        if field.default is None:
            attributes |= {"default": (), "callback": _names_or_none}
    elif about["minimum"] is not None:
        attributes["type"] = (click.IntRange if kind is int else click.FloatRange)(min=about["minimum"])
    else:
        attributes["type"] = kind
    return option(name, field.name, **attributes)


def _names_or_none(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...] | None:
    return values or None
