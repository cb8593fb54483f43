"""A table: its first rows are static HTML, and a script shows, sorts and filters all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

Kind = Literal["text", "name", "number", "choice", "result"]

FAILED = "failed"
"""The cell of a ``result`` column that the filter for failed rows selects."""

STATIC_ROWS = 50
"""The rows that are readable without JavaScript, and those of a page with it."""

_MOST_STATIC = 300


@dataclass(frozen=True)
class Column:
    """A column. A ``choice`` has few distinct values, by which rows are filtered; a ``result`` is one, too."""

    label: str
    kind: Kind = "text"


@dataclass(frozen=True)
class Table:
    """A table of text. Numbers are text, too, as `number_text` formats them."""

    id: str
    caption: str
    columns: list[Column]
    rows: Sequence[Sequence[str]]
    """The rows in their first order: failed ones first. The id of a row is that of the table and its number."""
    static: int = STATIC_ROWS
    """The rows that are readable without JavaScript, at least."""

    @property
    def static_rows(self) -> Sequence[Sequence[str]]:
        """The first rows, with as many of the failed ones as a page without JavaScript can have."""
        results = [index for index, column in enumerate(self.columns) if column.kind == "result"]
        failed = sum(row[index] == FAILED for row in self.rows for index in results)
        return self.rows[: max(self.static, min(failed, _MOST_STATIC))]

    @property
    def data(self) -> dict[str, Any]:
        """The data for the script: repeated cells of a ``choice`` are indices."""
        columns: list[dict[str, Any]] = []
        cells: list[Sequence[str | int]] = []
        for index, column in enumerate(self.columns):
            described: dict[str, Any] = {"label": column.label, "kind": column.kind}
            values: Sequence[str | int] = [row[index] for row in self.rows]
            if column.kind in ("choice", "result"):
                numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
                described["values"] = list(numbers)
                values = [numbers[value] for value in values]
            columns.append(described)
            cells.append(values)
        return {"columns": columns, "cells": cells, "page": STATIC_ROWS}
