"""Writes a report as text, as JUnit XML and as HTML."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from rich import box
from rich.console import Console
from rich.table import Table

from bngrad.io.files import replacing

if TYPE_CHECKING:
    from pathlib import Path

    from bngrad.validation.report import Check, Report, Row

_MAX_HTML_ROWS = 10_000
_HTML_WIDTH = 180


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


def write_junit(report: Report, path: Path) -> None:
    """Writes a report as JUnit XML: a suite for each check, a case for each row, and a case for the whole report.

    What was not compared is reported as skipped. A check or a report that compared nothing is a failure.

    Raises:
        InputError: The file cannot be written.
    """
    root = ET.Element("testsuites", name=f"bngrad validate {report.model}")
    for check in report.checks:
        _add_suite(root, check)
    whole = ET.SubElement(root, "testsuite", name="report", tests="1", failures=str(int(not report.passed)))
    case = ET.SubElement(whole, "testcase", name=report.against, classname="report")
    if not report.passed:
        ET.SubElement(case, "failure", message=report.reason)
    with replacing(path) as temporary:
        ET.ElementTree(root).write(temporary, encoding="utf-8", xml_declaration=True)


def _add_suite(root: ET.Element, check: Check) -> None:
    skipped = {check.name: check.skipped} if check.skipped else check.undecided
    empty = not check.rows and not check.skipped
    suite = ET.SubElement(
        root,
        "testsuite",
        name=check.name,
        tests=str(len(check.rows) + len(skipped) + empty),
        failures=str(len(check.failures) + empty),
        skipped=str(len(skipped)),
    )
    for name, reason in skipped.items():
        case = ET.SubElement(suite, "testcase", name=name, classname=check.name)
        ET.SubElement(case, "skipped", message=reason)
    if empty:
        case = ET.SubElement(suite, "testcase", name=check.name, classname=check.name)
        ET.SubElement(case, "failure", message=check.problem)
    for row in check.worst_first():
        name = f"{row.subject} {row.tensor} {row.implementation} against {row.against}"
        case = ET.SubElement(suite, "testcase", name=name, classname=check.name)
        if not row.passed:
            message = f"{row.measure:.3g} {check.unit}, at most {check.limit:g} {row.note}".strip()
            detail = f"max abs {row.max_abs:.3g}, relative L2 {row.relative_l2:.3g}"
            ET.SubElement(case, "failure", message=message).text = detail


def write_html(report: Report, path: Path) -> None:
    """Writes a report as HTML, with all rows.

    Raises:
        InputError: The file cannot be written.
    """
    console = Console(record=True, file=io.StringIO(), width=_HTML_WIDTH)
    print_text(report, console, _MAX_HTML_ROWS)
    with replacing(path) as temporary:
        temporary.write_text(console.export_html(), encoding="utf-8")


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
