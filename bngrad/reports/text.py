"""Prints the report of a validation as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console

    from bngrad.validation.report import Check, Report, Row


def print_text(report: Report, console: Console, rows: int = 8) -> None:
    """Prints a report.

    Args:
        report: The report.
        console: The console to print to.
        rows: Number of rows to print per check, worst first. Failed rows are always printed.
    """

    def line(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    nodes = ", ".join(f"{count} {op}" for op, count in report.batch_norms.items())
    line(f"{report.model}: {nodes or 'no batch norm in training mode and no batch-norm gradient'}")
    for note in report.notes:
        line(f"note: {note}")
    for check in report.checks:
        console.print()
        if check.rows:
            console.print(_summary(check))
            if rows:
                console.print(_worst(check, rows))
        else:
            line(f"{check.name}: {check.problem}")
        for note in check.notes:
            line(f"note: {note}")
        for name, reason in check.undecided.items():
            line(f"not compared: {name}: {reason}")
    console.print("\n[green]passed[/green]" if report.passed else "\n[red]FAILED[/red]", end="")
    line(f": {report.against}, seed {report.seed}, providers {', '.join(report.providers)}")
    if not report.passed:
        line(report.reason)


def _summary(check: Check) -> Table:
    """Returns a table of the count and worst values of each kind of tensor, implementation and reference."""
    table = Table(title=f"{check.name} (limit {check.limit:g} {check.unit})", title_justify="left", box=box.SIMPLE)
    for heading in ("kind", "implementation", "against"):
        table.add_column(heading)
    for heading in ("tensors", "failed", "worst max abs", "worst rel. L2", f"worst {check.unit}"):
        table.add_column(heading, justify="right")
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in check.rows:
        groups.setdefault((row.kind, row.implementation, row.against), []).append(row)
    for group, rows in groups.items():
        failed = sum(not row.passed for row in rows)
        worst_abs, worst_relative, worst = (
            max(getattr(row, measure) for row in rows) for measure in ("max_abs", "relative_l2", "measure")
        )
        figures = (f"{worst_abs:.1e}", f"{worst_relative:.1e}", f"{worst:.3g}")
        table.add_row(*group, str(len(rows)), str(failed), *figures)
    return table


def _worst(check: Check, rows: int) -> Table:
    """Returns a table of the worst rows, including all failed ones."""
    table = Table(box=box.SIMPLE)
    for heading in (check.unit, "max abs", "rel. L2"):
        table.add_column(heading, justify="right")
    for heading in ("", "worst first", "tensor", "implementation", "against", "note"):
        table.add_column(heading, overflow="fold")
    for row in check.worst_first()[: max(rows, len(check.failures))]:
        figures = (f"{row.measure:.3g}", f"{row.max_abs:.1e}", f"{row.relative_l2:.1e}")
        tensor = "" if row.tensor == row.subject else row.tensor
        verdict = "ok" if row.passed else "FAILED"
        table.add_row(*figures, verdict, row.subject, tensor, row.implementation, row.against, row.note)
    return table
