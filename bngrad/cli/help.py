"""Help texts, written once in Markdown, for ``--help`` and for docs/reference/commands.md.

``--help`` prints them as plain text, with the addresses of the documentation. The docstring of a command describes
it: paragraphs, which are wrapped, and lists with the marker "-". A default that click does not know ends an
option's text: "  [default: ...]".
"""

from __future__ import annotations

import inspect
import re
import shlex
import textwrap
from posixpath import normpath
from typing import TYPE_CHECKING, Any

import click

from bngrad.cli.console import print_line
from bngrad.cli.out_of_memory import Commands

if TYPE_CHECKING:
    from collections.abc import Mapping

_DOCUMENTATION = "Documentation"
"""The word that begins the paragraph with the pages on a command, and the label of their address."""

_LINK = re.compile(r"\[([^]]*)\]\(([^)\s]*)\)")

OPTIONS, COMMON = "Options", "Common options"

_OLD_NAMES = {"--implementation": "--provider"}
"""The deprecated name of an option, which is accepted but not shown."""


_ARGUMENTS = "bngrad.arguments"
"""The key in the ``meta`` of a context."""


def command_line(context: click.Context) -> str:
    """Returns the command line of a command that runs, with quotes where a shell needs them."""
    return shlex.join([*context.command_path.split(), *context.meta[_ARGUMENTS]])


class Option(click.Option):
    """An option that belongs to a group of options.

    Args:
        declarations: As for `click.Option`.
        group: Title of the group.
        attributes: As for `click.Option`.
    """

    def __init__(self, *declarations: Any, group: str = OPTIONS, **attributes: Any) -> None:  # noqa: ANN401
        super().__init__(*declarations, **attributes)
        self.group = group
        self._old_name = _OLD_NAMES.get(self.opts[0])

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:  # noqa: ANN401 - a private type of click
        """Lets the command line have the option, also by its old name."""
        super().add_to_parser(parser, ctx)
        if self._old_name is not None:
            parser.add_option(obj=self, opts=[self._old_name], dest=self._old_name)

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Takes the value from the command line, also by the old name, with a line on stderr.

        Raises:
            click.UsageError: The option is given by both names.
        """
        if self._old_name is not None and self._old_name in opts:
            if self.name in opts:
                raise click.UsageError(
                    f"{self._old_name} is the old name of {self.opts[0]}; give one of them", ctx
                )
            print_line("warning", f"{self._old_name} is deprecated; use {self.opts[0]}")
            opts = {**opts, str(self.name): opts[self._old_name]}
        return super().handle_parse_result(ctx, opts, args)


class _Described(click.Command):
    """A command whose description is Markdown, and whose options are in groups."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the description."""
        _write_description(self, ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options by group."""
        _write_options(self, ctx, formatter)

    def get_short_help_str(self, limit: int = 45) -> str:
        """Returns the first line of the description."""
        return short_help(self) or super().get_short_help_str(limit)


class Command(_Described):
    """A command with examples, and with the common options.

    Args:
        arguments: As for `click.Command`.
        examples: Lines of commands, ``$ bngrad ...``, and of comments, ``# ...``.
        json: Whether the command takes ``as_json``, the option --json.
        attributes: As for `click.Command`.
    """

    def __init__(
        self,
        *arguments: Any,  # noqa: ANN401
        examples: str = "",
        json: bool = True,
        **attributes: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(*arguments, **attributes)
        self.examples = inspect.cleandoc(examples)
        if json:
            text = "Print one [JSON document](json.md) on stdout."
            self.params.append(Option(["--json", "as_json"], is_flag=True, group=COMMON, help=text))
        # `cli.run` looks for --debug itself, because an error may occur before the options are parsed.
        text = "Show a traceback on errors."
        self.params.append(Option(["--debug"], is_flag=True, expose_value=False, group=COMMON, help=text))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments, and keeps them for `command_line`."""
        ctx.meta[_ARGUMENTS] = [*args]
        return super().parse_args(ctx, args)

    def format_epilog(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the examples."""
        if self.examples:
            with formatter.section("Examples"):
                formatter.write(textwrap.indent(self.examples, "  ") + "\n")


class Group(_Described, Commands):
    """Commands in the order in which they were added.

    Args:
        arguments: As for `click.Group`.
        sections: Tables to print after the commands, by title.
        attributes: As for `click.Group`.
    """

    command_class = Command

    def __init__(
        self,
        *arguments: Any,  # noqa: ANN401
        sections: Mapping[str, Mapping[str, str]] | None = None,
        **attributes: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(*arguments, **attributes)
        self.sections = sections or {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments; without any, the help is printed."""
        return super().parse_args(ctx, args or ["--help"])

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Returns the names of the commands."""
        return list(self.commands)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands, and then the options."""
        self.format_commands(ctx, formatter)
        _write_options(self, ctx, formatter)

    def format_epilog(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the sections."""
        for title, rows in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, plain(text)) for name, text in rows.items()])


def plain(text: str) -> str:
    """Returns Markdown as plain text: links and code are replaced by their text."""
    return _LINK.sub(r"\1", text).replace("`", "")


def paragraphs(command: click.Command) -> list[str]:
    """Returns the paragraphs of a command's description."""
    text = inspect.cleandoc(command.help or "").partition("\f")[0].strip()
    return text.split("\n\n") if text else []


def short_help(command: click.Command) -> str:
    """Returns the first line of a command's description, without the full stop."""
    first, *_ = [*paragraphs(command), ""]
    return plain(" ".join(first.split())).removesuffix(".")


def list_items(paragraph: str) -> list[str]:
    """Returns the items of a list; none if the paragraph is not a list."""
    first, *items = re.split(r"^- ", paragraph, flags=re.MULTILINE)
    return [] if first else [" ".join(item.split()) for item in items]


def option_groups(command: click.Command, context: click.Context) -> dict[str, list[click.Option]]:
    """Returns the options that are shown, by the title of their group; the common ones come last."""
    groups: dict[str, list[click.Option]] = {}
    for parameter in command.get_params(context):
        if isinstance(parameter, click.Option) and not parameter.hidden:
            # click makes --help and --version itself.
            title = (
                COMMON if {"--help", "--version"} & set(parameter.opts) else getattr(parameter, "group", OPTIONS)
            )
            groups.setdefault(title, []).append(parameter)
    common = groups.pop(COMMON, [])
    return groups | {COMMON: common}


def _documentation(paragraph: str, indent: str, width: int) -> str:
    """Returns the lines of a paragraph on the documentation, with addresses; empty for another paragraph."""
    from bngrad.reports.rules import project_url

    base = project_url(_DOCUMENTATION) if paragraph.startswith(f"{_DOCUMENTATION}:") else None
    if base is None:
        return ""
    lines = [f"{indent}{_DOCUMENTATION}:"]
    for title, page in _LINK.findall(paragraph):
        path = normpath(f"reference/{page}").replace(".md", ".html")  # from docs/reference/commands.md
        line = f"{indent}{title}: {base}{path}"
        # An address that is broken cannot be followed.
        lines += [line] if len(line) <= width else [f"{indent}{title}:", f"{indent}{base}{path}"]
    return "\n".join(lines) + "\n"


def _write_description(command: click.Command, _context: click.Context, formatter: click.HelpFormatter) -> None:
    for paragraph in paragraphs(command):
        formatter.write_paragraph()
        with formatter.indentation():
            indent = " " * formatter.current_indent
            if items := list_items(paragraph):
                for item in items:
                    text = textwrap.fill(
                        plain(item),
                        formatter.width,
                        initial_indent=f"{indent}- ",
                        subsequent_indent=f"{indent}  ",
                        break_on_hyphens=False,
                    )
                    formatter.write(text + "\n")
            elif lines := _documentation(" ".join(paragraph.split()), indent, formatter.width):
                formatter.write(lines)
            else:
                formatter.write_text(plain(" ".join(paragraph.split())))


def _write_options(command: click.Command, context: click.Context, formatter: click.HelpFormatter) -> None:
    groups = option_groups(command, context)
    for title, options in groups.items():
        records = [record for option in options if (record := option.get_help_record(context)) is not None]
        with formatter.section(title if len(groups) > 1 else OPTIONS):
            formatter.write_dl([(names, plain(text)) for names, text in records])
