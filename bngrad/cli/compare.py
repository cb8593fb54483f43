"""``bngrad compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from bngrad.cli.console import print_json, printing
from bngrad.cli.help import Command
from bngrad.cli.options import REPORT, option, rows_option
from bngrad.cli.shell_completion import complete_files

if TYPE_CHECKING:
    from bngrad.reports.compare.comparison import Comparison


@click.command(
    "compare",
    cls=Command,
    examples="""
        $ bngrad compare sgd.jsonl adamw.jsonl --html runs.html
        $ bngrad compare before.json after.json
    """,
)
@click.argument(
    "files",
    metavar="FILE...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
    shell_complete=complete_files(".jsonl", ".json"),
)
@option(
    "--html", type=click.Path(), metavar="FILE", group=REPORT, help="Write a [page](../guides/reports.md#compare)."
)
@rows_option("Changes to show of two reports; those that are worse are always shown.")
def compare_command(files: tuple[Path, ...], html: str | None, rows: int, as_json: bool) -> None:
    """Compare training runs, or two reports.

    FILE is a log of `bngrad train --log`, up to eight of them; or a report of `bngrad validate --json` or
    `bngrad bench --json`, the former one first.

    Of runs, the best values, the times and the options that differ are shown, and in the page the curves. Of
    reports, what got better or worse is shown by node or case, and the settings and versions that differ. The exit
    code does not depend on it.
    """
    from bngrad.cli.outputs import check_outputs
    from bngrad.reports.compare.changes import compare_reports
    from bngrad.reports.compare.read import read
    from bngrad.reports.compare.runs import compare_runs

    pages = check_outputs([html] if html is not None else [], dict.fromkeys(files))
    content, names = read(files), [str(file) for file in files]
    if content.kind == "train":
        comparison = compare_runs(names, content.logs)
    else:
        comparison = compare_reports(content.kind, names, content.documents)
    for page in pages:
        from bngrad.reports.html.comparison import write_html

        write_html(comparison, content.logs, page)
    with printing():
        if as_json:
            print_json(comparison.to_dict())
        else:
            _print(comparison, rows)


def _print(comparison: Comparison, rows: int) -> None:
    from rich.box import HEAVY_HEAD

    from bngrad.cli.console import stdout_console
    from bngrad.reports.compare.text import change_rows, counts_line, run_rows, setting_rows
    from bngrad.reports.tables import print_table, print_text_line

    console = stdout_console()
    if comparison.runs:
        print_table(console, *run_rows(comparison), style=HEAVY_HEAD)
    else:
        print_text_line(console, counts_line(comparison))
        columns, cells = change_rows(comparison, rows)
        if cells:
            print_table(console, columns, cells, style=HEAVY_HEAD)
    if comparison.settings:
        print_table(console, *setting_rows(comparison), title="settings that differ", style=HEAVY_HEAD)
