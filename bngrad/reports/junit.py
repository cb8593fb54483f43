"""Writes the report of a validation as JUnit XML."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from bngrad.io.writing import write_text
from bngrad.reports.visible import LINES, visible

if TYPE_CHECKING:
    from pathlib import Path

    from bngrad.validation.report import Check, Report


def write_junit(report: Report, path: Path) -> None:
    """Writes a report as JUnit XML: a suite for each check, a case for each row, and a case for the whole report.

    What was not compared is reported as skipped, as is a reference that another one replaces. A check or a report
    that compared nothing is a failure, and a model that could not be validated an error.

    Raises:
        InputError: The file cannot be written.
    """
    root = ET.Element("testsuites", name=f"bngrad validate {report.model}")
    for check in report.checks:
        _add_suite(root, check)
    failed, errors = int(not report.passed and not report.error), int(bool(report.error))
    other = int(bool(report.instead_of))
    counts = {"tests": str(1 + other), "failures": str(failed), "errors": str(errors), "skipped": str(other)}
    whole = ET.SubElement(root, "testsuite", {"name": "report", **counts})
    case = ET.SubElement(whole, "testcase", name=report.against, classname="report")
    if not report.passed:
        ET.SubElement(case, "error" if report.error else "failure", message=report.reason)
    if other:
        case = ET.SubElement(whole, "testcase", name=report.instead_of, classname="report")
        ET.SubElement(case, "skipped", message=f"compared with {report.compared_with}")
    text = visible(ET.tostring(root, encoding="unicode"), keep=LINES)  # XML 1.0 has no form for the others
    write_text(path, f"<?xml version='1.0' encoding='utf-8'?>\n{text}")


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
