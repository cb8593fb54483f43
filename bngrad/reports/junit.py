"""Writes the report of a validation as JUnit XML."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from bngrad.io.writing import write_text

if TYPE_CHECKING:
    from pathlib import Path

    from bngrad.validation.report import Check, Report

_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 has no form for, such as most control characters."""


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
    text = _NOT_XML.sub("\ufffd", ET.tostring(root, encoding="unicode"))
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
