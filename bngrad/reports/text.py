"""Prints the report of a validation as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.reports.tables import Column, print_table, print_text_line
from bngrad.validation.report import VERDICTS, rank

if TYPE_CHECKING:
    from rich.console import Console

    from bngrad.validation.report import Check, Report, Row


_COLORS = {"passed": "green", "failed": "red", "incomplete": "yellow"}


def print_text(report: Report, console: Console, rows: int = 8) -> None:
    """Prints a report.

    Args:
        report: The report.
        console: The console to print to.
        rows: Number of rows to print per check, worst first. Failed rows are always printed.
    """

    def line(text: str) -> None:
        print_text_line(console, text)

    nodes = ", ".join(f"{count} {op}" for op, count in report.batch_norms.items())
    line(f"{report.model}: {nodes or 'no batch norm in training mode and no batch-norm gradient'}")
    for note in report.notes:
        line(f"note: {note}")
    for check in report.checks:
        console.print()
        if check.rows:
            _print_summary(check, console)
            if rows:
                _print_worst(check, rows, console)
        else:
            line(f"{check.name}: {check.problem}")
        for note in check.notes:
            line(f"note: {note}")
        for text in check.not_compared():
            line(f"not compared: {text}")
    color = _COLORS[report.verdict]
    console.print(f"\n[{color}]{VERDICTS[report.verdict]}[/{color}]", end="")
    line(f": {report.compared_with}, seed {report.seed}, implementations {', '.join(report.implementations)}")
    if not report.passed:
        line(report.reason)
        if report.advice:
            line(report.advice)


def _print_summary(check: Check, console: Console) -> None:
    """Prints the count and worst values of each kind of tensor, implementation and reference."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in check.rows:
        groups.setdefault((row.kind, row.implementation, row.against), []).append(row)
    table = []
    kinds = list(dict.fromkeys(kind for kind, _, _ in groups))
    for group, rows in sorted(groups.items(), key=lambda item: kinds.index(item[0][0])):
        failed = sum(not row.passed for row in rows)
        worst_abs, worst_relative, worst = (
            max((getattr(row, measure) for row in rows), key=rank)
            for measure in ("max_abs", "relative_l2", "measure")
        )
        figures = (f"{worst_abs:.1e}", f"{worst_relative:.1e}", f"{worst:.3g}")
        table.append((*group, str(len(rows)), str(failed), *figures))
    headings = ("tensors", "failed", "worst max abs", "worst rel. L2", f"worst {check.unit}")
    columns = [Column("kind", name=True), Column("implementation"), Column("against")]
    columns += [Column(heading, right=True) for heading in headings]
    print_table(console, columns, table, title=f"{check.name} (limit {check.limit:g} {check.unit})")


def _print_worst(check: Check, rows: int, console: Console) -> None:
    """Prints the worst rows, including all failed ones."""
    table = []
    for row in check.worst_first()[: max(rows, len(check.failures))]:
        figures = (f"{row.measure:.3g}", f"{row.max_abs:.1e}", f"{row.relative_l2:.1e}")
        tensor = "" if row.tensor == row.subject else row.tensor
        verdict = "ok" if row.passed else "FAILED"
        table.append((*figures, verdict, row.subject, tensor, row.implementation, row.against, row.note))
    columns = [Column(heading, right=True) for heading in (check.unit, "max abs", "rel. L2")]
    columns += [Column("result"), Column("worst first", name=True), Column("tensor", name=True)]
    columns += [Column(heading) for heading in ("implementation", "against", "note")]
    print_table(console, columns, table)
