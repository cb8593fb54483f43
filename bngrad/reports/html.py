"""Writes the report of a validation as HTML."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console

from bngrad.io.files import replacing
from bngrad.reports.text import print_text

if TYPE_CHECKING:
    from pathlib import Path

    from bngrad.validation.report import Report

_MAX_HTML_ROWS = 10_000
_HTML_WIDTH = 180


def write_html(report: Report, path: Path) -> None:
    """Writes a report as HTML, with all rows.

    Raises:
        InputError: The file cannot be written.
    """
    console = Console(record=True, file=io.StringIO(), width=_HTML_WIDTH)
    print_text(report, console, _MAX_HTML_ROWS)
    with replacing(path) as temporary:
        temporary.write_text(console.export_html(), encoding="utf-8")
