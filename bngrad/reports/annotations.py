"""Writes findings as annotations of GitHub Actions: lines that a job prints to show a message at a file.

https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.io.writing import write_text
from bngrad.reports.findings import findings_of_report
from bngrad.reports.visible import visible

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bngrad.reports.findings import Finding
    from bngrad.validation.report import Report

MAX = 10
"""GitHub shows this many annotations of each level of a step."""


def write_annotations(path: Path, findings: Sequence[Finding]) -> None:
    """Writes errors and warnings as workflow commands, one on each line; notes are left out.

    If there are more than GitHub shows, the last one states how many are left out.

    Raises:
        InputError: The file cannot be written.
    """
    lines: list[str] = []
    for level in ("error", "warning"):
        of_level = [finding for finding in findings if finding.level == level]
        shown = of_level if len(of_level) <= MAX else of_level[: MAX - 1]
        lines += [
            annotation(level, finding.message, title=_title(finding), file=finding.model) for finding in shown
        ]
        if left := len(of_level) - len(shown):
            text = f"{left} more {level}s are in the report"
            lines.append(annotation(level, text, title="bngrad", file=of_level[-1].model))
    write_text(path, "".join(f"{line}\n" for line in lines))


def write_report_annotations(report: Report, path: Path) -> None:
    """Writes the findings of a validation.

    Raises:
        InputError: The file cannot be written.
    """
    write_annotations(path, findings_of_report(report))


def annotation(level: str, message: str, **properties: str) -> str:
    """Returns a workflow command; characters that would end it or begin another are escaped."""
    listed = ",".join(f"{name}={_escaped(value, '%', ':', ',')}" for name, value in properties.items())
    return f"::{level} {listed}::{_escaped(message, '%')}"


def _title(finding: Finding) -> str:
    return ": ".join(filter(None, ("bngrad", finding.rule.id, finding.path)))


def _escaped(text: str, *special: str) -> str:
    """Returns a text with characters in percent encoding; ``%`` has to be the first."""
    text = visible(text, keep="\r\n")
    for character in (*special, "\r", "\n"):
        text = text.replace(character, f"%{ord(character):02X}")
    return text
