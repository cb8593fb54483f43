"""Tables that fit a terminal: where the columns do not, they become fewer, and then a few lines for each row."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich import box
from rich.cells import cell_len, chop_cells
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from bngrad.reports.visible import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

_UNBOUNDED = 1_000_000

_HEADING = 8
"""The least width that headings are wrapped to."""


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    heading: str
    right: bool = False
    """True if cells are aligned to the right."""
    name: bool = False
    """True if cells are names, which may be long: they get a line of their own if the columns do not fit."""
    optional: bool = False
    """True if the column can be left out of a table that would not fit; a line above it says so."""


def print_table(
    console: Console,
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    *,
    title: str = "",
    style: box.Box = box.SIMPLE,
) -> None:
    """Prints a table in the first of these forms that fits the width of the console; no cell is ever cut.

    1. All columns.
    2. Without text columns that are the same in all rows, which a line above has, and without optional columns,
       which it names.
    3. Names on lines of their own, each above the other cells of its row.
    4. The same with the headings in each row, wrapped.

    The third leaves out optional columns, too, if it fits only so; the last has all.

    Args:
        console: The console.
        columns: The columns.
        rows: The cells of each row.
        title: A line above the table.
        style: How the table is drawn.
    """
    rows = [[visible(cell) for cell in row] for row in rows]
    if title:
        console.print(Text(title, "italic"), overflow="fold")
    table = _table(columns, rows, style)
    if _fits(table, console):
        console.print(table)
        return
    columns, rows, remarks = _without_common(columns, rows)
    columns = [_narrow(column, rows, index) for index, column in enumerate(columns)]
    required = [index for index, column in enumerate(columns) if not column.optional]
    few = [columns[index] for index in required], [[row[index] for index in required] for row in rows]
    table = _table(*few, style)
    is_table = _fits(table, console)
    is_few = is_table or (_fits_by_row(*few, console) and not _fits_by_row(columns, rows, console))
    if is_few and (left_out := [column.heading.replace("\n", " ") for column in columns if column.optional]):
        remarks += [f"no room for {', '.join(left_out)}"]
    if remarks:
        console.print(Text("; ".join(remarks)), overflow="fold")
    if is_table:
        console.print(table)
    else:
        _print_by_row(console, *(few if is_few else (columns, rows)))


def _table(columns: Sequence[Column], rows: Sequence[Sequence[str]], style: box.Box) -> Table:
    table = Table(box=style)
    for column in columns:
        table.add_column(column.heading, justify="right" if column.right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))  # Text: a name may contain rich's markup
    return table


def _fits(table: Table, console: Console) -> bool:
    measured = Measurement.get(console, console.options.update(width=_UNBOUNDED), table)
    return measured.maximum <= console.width


def _without_common(
    columns: Sequence[Column], rows: Sequence[Sequence[str]]
) -> tuple[list[Column], list[list[str]], list[str]]:
    """Leaves out empty columns, and text columns with one value, which it returns with their headings."""
    kept, common = [], []
    for index, column in enumerate(columns):
        values = {row[index] for row in rows}
        if values == {""}:
            continue
        if len(rows) > 1 and len(values) == 1 and not (column.right or column.name):
            common.append(f"{column.heading}: {rows[0][index]}")
        else:
            kept.append(index)
    return [columns[index] for index in kept], [[row[index] for index in kept] for row in rows], common


def _narrow(column: Column, rows: Sequence[Sequence[str]], index: int) -> Column:
    """Returns the column with its heading wrapped at spaces, to the width of its cells."""
    width = max([_HEADING, *(cell_len(row[index]) for row in rows)])
    return replace(column, heading="\n".join(textwrap.wrap(column.heading, width, break_long_words=False)))


def _by_row(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> tuple[list[tuple[str, ...]], list[int]]:
    """Returns the lines of the headings of all columns but names, then their cells by row; and their widths."""
    others = [index for index, column in enumerate(columns) if not column.name]
    headings = [columns[index].heading.split("\n") for index in others]
    height = max(map(len, headings), default=0)
    lines = list(zip(*([""] * (height - len(heading)) + heading for heading in headings), strict=True))
    lines += [tuple(row[index] for index in others) for row in rows]
    return lines, [max(map(cell_len, column)) for column in zip(*lines, strict=True)]


def _fits_by_row(columns: Sequence[Column], rows: Sequence[Sequence[str]], console: Console) -> bool:
    _, widths = _by_row(columns, rows)
    return bool(widths) and 2 + sum(widths) + 2 * (len(widths) - 1) <= console.width


def _print_by_row(console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Prints each row below its names, in columns if these fit; names that several rows share are printed once."""
    lines, widths = _by_row(columns, rows)
    headings, cells = lines[: len(lines) - len(rows)], lines[len(lines) - len(rows) :]
    right = [column.right for column in columns if not column.name]
    aligned = _fits_by_row(columns, rows, console)
    if aligned:
        for line in headings:
            console.print(Text(_aligned(line, widths, right), "bold"))
    before = None
    for row, values in zip(rows, cells, strict=True):
        name = ": ".join(cell for cell, column in zip(row, columns, strict=True) if column.name and cell)
        if name != before:
            for part in chop_cells(name, console.width):
                console.print(Text(part), no_wrap=True)
        before = name
        if aligned:
            console.print(Text(_aligned(values, widths, right)))
        else:
            titles = [column.heading.replace("\n", " ") for column in columns if not column.name]
            pairs = [f"{title} {value}" for title, value in zip(titles, values, strict=True) if value]
            for part in _wrapped(pairs, console.width - 2):
                console.print(Text(f"  {part}"), no_wrap=True)


def _wrapped(parts: Sequence[str], width: int) -> list[str]:
    """Joins parts with commas to lines; a part is broken only if it is wider than a line."""
    lines: list[str] = []
    for part in parts:
        if lines and cell_len(lines[-1]) + cell_len(part) + 3 <= width:
            lines[-1] += f", {part}"
        else:
            lines += [part]
    ended = [f"{line}," for line in lines[:-1]] + lines[-1:]
    return [piece for line in ended for piece in chop_cells(line, width)]


def _aligned(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = []
    for cell, width, is_right in zip(cells, widths, right, strict=True):
        space = " " * (width - cell_len(cell))
        padded.append(space + cell if is_right else cell + space)
    return "  " + "  ".join(padded).rstrip()


def print_text_line(console: Console, text: str) -> None:
    """Prints a text, wrapped at spaces; as one line in a file or a pipe, whose console is as wide as needed."""
    console.print(Text(visible(text)), soft_wrap=not console.is_terminal, overflow="fold")
