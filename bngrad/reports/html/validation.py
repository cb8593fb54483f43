"""Writes the report of a validation as HTML."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bngrad.reports.html.charts import Histogram, decades, histogram, ratio
from bngrad.reports.html.culprits import Culprits
from bngrad.reports.html.page import number_text, write_page
from bngrad.reports.html.scatter import Point, Scatter, scatter
from bngrad.reports.html.table import FAILED, Column, Table
from bngrad.validation.report import rank

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bngrad.validation.report import Check, Report, Row
    from bngrad.validation.statistics import TensorStatistics

WORST = 5
"""The most nodes of a check that are shown with the statistics of their tensors."""

_ABOUT = {
    "lock-step": "Each node by itself, with its inputs in the original graph, against the error bound of "
    "its own arithmetic.",
    "whole graph": "All outputs of the graph, against how much they change when the inputs change by one ulp.",
    "float64": "All outputs of the graph in float64, where rounding cannot hide an error.",
    "forward in float64": "The outputs of the forward model, compared in float64.",
    "central differences": "Each gradient against the slope of the loss in float64, along a random direction.",
    "on stock ONNX Runtime": "The graph on the installed ONNX Runtime against float64, in units of its noise.",
    "PyTorch's autograd": "Loss, outputs, gradients and running statistics against PyTorch in float64.",
    "hard batch norms": "What the system computes for each case against float64, in units of the error bound.",
    "PyTorch": "Some training steps against the module, in units of PyTorch's own rounding errors.",
}

_COLUMNS = [
    Column("result", "result"),
    Column("error / limit", "number"),
    Column("node or output", "name"),
    Column("tensor", "name"),
    Column("kind", "choice"),
    Column("check", "choice"),
    Column("implementation", "choice"),
    Column("against", "choice"),
    Column("measure", "number"),
    Column("max abs", "number"),
    Column("rel. L2", "number"),
    Column("note"),
]


@dataclass(frozen=True)
class _Compared:
    """A row with its check and the check's number among those that have rows."""

    row: Row
    check: Check
    series: int

    @property
    def ratio(self) -> float:
        return ratio(self.row.measure, self.check.limit)

    @property
    def badness(self) -> tuple[bool, int, float]:
        """The sort key of rows: failed ones first, by check (ratios of checks do not compare), worst first."""
        return self.row.passed, self.series, -rank(self.ratio)

    @property
    def label(self) -> str:
        measure = f"{number_text(self.ratio)} of the limit"
        return f"{self.row.tensor}: {measure} ({self.check.name}, {self.row.implementation})"

    @property
    def cells(self) -> list[str]:
        row = self.row
        return [
            "passed" if row.passed else FAILED,
            number_text(self.ratio),
            row.subject,
            "" if row.tensor == row.subject else row.tensor,
            row.kind,
            self.check.name,
            row.implementation,
            row.against,
            number_text(row.measure),
            number_text(row.max_abs),
            number_text(row.relative_l2),
            row.note,
        ]


@dataclass(frozen=True)
class _Subject:
    """A node among the worst of a check."""

    worst: Row
    ratio: float
    tensors: list[TensorStatistics]
    source: str
    """The line of Python that the node was exported from; empty if unknown."""


@dataclass(frozen=True)
class _Section:
    """A check as the page shows it."""

    check: Check
    about: str
    series: int
    """The number of the check in the picture."""
    worst: Row | None
    ratio: float
    histogram: Histogram
    subjects: list[_Subject]


def write_html(report: Report, path: Path) -> None:
    """Writes a report as one HTML page, with all rows.

    Raises:
        InputError: The file cannot be written.
    """
    compared = [
        _Compared(row, check, series)
        for series, check in enumerate(check for check in report.checks if check.rows)
        for row in check.rows
    ]
    compared.sort(key=lambda comparison: comparison.badness)
    table = Table(
        "comparisons",
        "Failed ones first, by check, worst first",
        _COLUMNS,
        [comparison.cells for comparison in compared],
    )
    culprits = Culprits(report, [comparison.row for comparison in compared])
    sections = _sections(report.checks, [comparison.ratio for comparison in compared], culprits)
    write_page(
        path,
        "validation",
        report=report,
        sections=sections,
        culprits=[culprits.of(section.check, section.ratio) for section in sections if section.check.failures],
        picture=_picture(compared) if compared else None,
        table=table,
        failed=sum(not comparison.row.passed for comparison in compared),
        not_compared=[(c.name, name, why) for c in report.checks for name, why in c.undecided.items()],
        skipped=[check for check in report.checks if check.skipped],
    )


def _picture(compared: Sequence[_Compared]) -> Scatter:
    points = [
        Point(
            _place(comparison.row),
            comparison.ratio,
            comparison.series,
            not comparison.row.passed,
            comparison.label,
        )
        for comparison in compared
    ]
    losses = [
        comparison.row.position
        for comparison in compared
        if comparison.row.kind == "loss" and comparison.row.position is not None
    ]
    return scatter(points, min(losses, default=None))


def _place(row: Row) -> float:
    return math.inf if row.position is None else row.position


def _sections(checks: Sequence[Check], ratios: Sequence[float], culprits: Culprits) -> list[_Section]:
    low, high = decades(ratios)
    sections, series = [], 0
    for check in checks:
        rows = check.worst_first()
        own = [ratio(row.measure, check.limit) for row in rows]
        worst: dict[str, Row] = {}
        for row in rows:
            worst.setdefault(row.subject, row)
        subjects = [
            _Subject(worst[name], ratio(worst[name].measure, check.limit), tensors, culprits.source(worst[name]))
            for name, tensors in check.statistics.items()
            if name in worst and worst[name].measure != 0
        ]
        sections.append(
            _Section(
                check,
                _ABOUT.get(check.name, ""),
                series,
                rows[0] if rows else None,
                own[0] if own else 0.0,
                histogram(own, low, high),
                subjects[:WORST],
            )
        )
        series += bool(rows)
    return sections
