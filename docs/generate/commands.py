"""Writes docs/reference/commands.md from the commands: their descriptions, examples and options.

.venv/bin/python docs/generate/commands.py
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bngrad.cli import cli
from bngrad.cli.help import COMMON, Command, Group, list_items, option_groups, paragraphs, short_help

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PAGE = Path(__file__).parents[1] / "reference" / "commands.md"

_WIDTH = 120

_PROGRAM = """`bngrad --version` prints the version. `python -m bngrad` is the same program as `bngrad`. Bash, Zsh
and Fish [complete](#bngrad-completion) commands, options and files."""

_MESSAGES = """Warnings are one line each on stderr, `bngrad: warning: ...`, and in `--json` under `warnings`:
[their causes and remedies](warnings.md). Notes on what was changed in the model are `bngrad: note: ...`.
Outputs are written atomically: an existing file is either kept or replaced as a whole. An option that is marked
"repeatable" may be given several times."""


def page() -> str:
    """Returns the page."""
    context = click.Context(cli, info_name="bngrad", **cli.context_settings)
    parts = ["<!-- Written by docs/generate/commands.py; edit the texts in bngrad/cli. -->", "# Commands"]
    parts.append(
        _table(["command", ""], ([_link(name), short_help(command)] for name, command in cli.commands.items()))
    )
    parts += map(_wrap, (_PROGRAM, _MESSAGES))
    for title, rows in cli.sections.items():
        first = "code" if "code" in title else "variable"
        parts += [f"## {title}", _table([first, ""], ([f"`{name}`", text] for name, text in rows.items()))]
    parts += ["## Common options", _table(["option", ""], _common(context))]
    for command in cli.commands.values():
        parts += _section(command, context)
    return "\n\n".join(parts) + "\n"


def _section(command: click.Command, parent: click.Context, level: int = 2) -> Iterator[str]:
    context = click.Context(command, info_name=command.name, parent=parent)
    yield f"{'#' * level} {context.command_path}"
    if not isinstance(command, Group):
        yield "```console\n" + context.get_usage().replace("Usage: ", "") + "\n```"
    for paragraph in paragraphs(command):
        items = list_items(paragraph)
        yield (
            "\n".join(_wrap(f"- {item}", "  ") for item in items) if items else _wrap(" ".join(paragraph.split()))
        )
    if isinstance(command, Command) and command.examples:
        yield "```console\n" + command.examples + "\n```"
    if isinstance(command, Group):
        for child in command.commands.values():
            yield from _section(child, context, level + 1)
        return
    for title, options in option_groups(command, context).items():
        if title != COMMON:
            yield _table([title.lower(), "", "default"], (_row(option, context) for option in options))


def _common(context: click.Context) -> Iterator[list[str]]:
    """The options of all commands, and of those that have ``--json``."""
    seen: dict[str, tuple[click.Option, list[str]]] = {}
    for name, command in _leaves(cli):
        for option in option_groups(command, context).get(COMMON, ()):
            seen.setdefault(option.opts[-1], (option, []))[1].append(name)
    for option, names in seen.values():
        declaration, text, _ = _row(option, context)
        everywhere = len(names) == len(list(_leaves(cli)))
        yield [declaration, text if everywhere else f"{text} Of {', '.join(f'`{name}`' for name in names)}."]


def _leaves(group: click.Group, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _leaves(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def _row(option: click.Option, context: click.Context) -> list[str]:
    """The declaration, the text and the default of an option."""
    declaration, _ = option.get_help_record(context) or ("", "")
    metavar = "" if option.is_flag else declaration.removeprefix(", ".join(option.opts)).replace(" RANGE", "")
    metavar = metavar.replace("[", "").replace("]", "").replace("|", "\\|")
    names = [f"`{name}`" for name in (*option.opts, *option.secondary_opts)]
    names[len(option.opts) - 1] = f"`{option.opts[-1]}{metavar}`"
    text, _, default = (option.help or "").partition("  [default: ")
    if default:
        default = _code(default.removesuffix("]"))
    elif option.required:
        default = "required"
    elif option.show_default:
        value = option.default if not option.secondary_opts else option.opts[0].removeprefix("--")
        default = f"`{value}`"
    return [", ".join(names), _code(text), default]


def _code(text: str) -> str:
    """Marks the options in a text as code, outside of code and of links' targets."""
    return "".join(
        part if part.startswith(("`", "](")) else re.sub(r"(?<![\w-])--[a-z][a-z0-9-]*", r"`\g<0>`", part)
        for part in re.split(r"(`[^`]*`|\]\([^)]*\))", text)
    )


def _wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(_code(text), _WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _link(name: str) -> str:
    return f"[`bngrad {name}`](#bngrad-{name})"


def _table(headings: list[str], rows: Iterable[list[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
