"""Tables in Markdown, between ``<!-- NAME -->`` and ``<!-- end -->``; other text is written by hand."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

_TABLE = re.compile(r"(?<=^<!-- )(?!end )(\w+) -->\n.*?(?=^<!-- end -->$)", re.MULTILINE | re.DOTALL)


def with_tables(page: Path, table: Callable[[str], str]) -> str:
    """Returns a page with the tables that a function returns for their names."""
    return _TABLE.sub(lambda match: f"{match[1]} -->\n\n{table(match[1])}\n\n", page.read_text(encoding="utf-8"))


def rows_of(header: list[str], rows: Iterable[list[str]]) -> str:
    """Returns a table with these cells."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(re.sub(" +", " ", f"| {' | '.join(cells)} |") for cells in lines)
