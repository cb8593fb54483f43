"""Writes the report of a validation as Markdown, for the page of a CI job: the checks, and what failed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from bngrad.io.writing import write_text
from bngrad.reports.findings import findings_of_report
from bngrad.reports.visible import visible
from bngrad.validation.report import VERDICTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from bngrad.validation.report import Check, Report

_MAX_FINDINGS = 50
"""More are counted: GitHub takes 1 MiB for the summary of a step."""


def write_summary(report: Report, path: Path) -> None:
    """Writes a report as a section of Markdown.

    Raises:
        InputError: The file cannot be written.
    """
    write_text(path, "\n".join(_lines(report)) + "\n")


def error_summary(model: str, message: str) -> str:
    """Returns the section for a model that could not be validated."""
    return f"### {_code(model)}: ERROR\n\n{_plain(message)}\n\n"


def inspection_summary(problems: Sequence[str]) -> str:
    """Returns the section for the models that ``bngrad inspect`` does not accept."""
    shown = [f"- {_plain(problem)}" for problem in problems[:_MAX_FINDINGS]]
    more = len(problems) - len(shown)
    return "\n".join(["### `bngrad inspect`: FAILED", "", *shown, *([f"- {more} more"] if more else []), "", ""])


def _lines(report: Report) -> Iterator[str]:
    if report.error:
        yield error_summary(report.model, report.error).removesuffix("\n")
        return
    yield f"### {_code(report.model)}: {VERDICTS[report.verdict]}"
    yield ""
    yield from (text for line in (report.reason, report.advice) if line for text in (_plain(line), ""))
    rows = [_check(check) for check in report.checks]
    yield from _table(("check", "result", "comparisons", "failed", "worst", "limit"), rows)
    implementations = ", ".join(report.implementations)
    yield f"Against {report.compared_with}, seed {report.seed}, implementations {implementations}."
    yield ""
    findings = [finding for finding in findings_of_report(report) if finding.level != "note"]
    if findings:
        rows = [
            (finding.rule.id, _code(finding.path) if finding.path else "", _plain(finding.message))
            for finding in findings
        ]
        yield from _table(("finding", "where", "message"), rows[:_MAX_FINDINGS])
    if len(findings) > _MAX_FINDINGS:
        yield from (f"{len(findings) - _MAX_FINDINGS} more are in the report.", "")


def _check(check: Check) -> tuple[str, ...]:
    result = "passed" if check.passed else "skipped" if check.skipped else "FAILED" if check.rows else "INCOMPLETE"
    if not check.rows:
        return (check.name, f"{result}: {_plain(check.problem)}", "0", "0", "", "")
    worst = check.worst_first()[0]
    failed = str(len(check.failures))
    return (
        check.name,
        result,
        str(len(check.rows)),
        failed,
        f"{worst.measure:.3g} {check.unit}",
        f"{check.limit:g}",
    )


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield f"|{'---|' * len(headings)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def _code(text: str) -> str:
    """Returns a text as a code span, which a name cannot leave: its fence is longer than any run of backticks."""
    text = _one_line(text).replace("|", r"\|")
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {text} {fence}" if longest else f"{fence}{text}{fence}"


def _plain(text: str) -> str:
    """Returns a text without Markdown or HTML in it."""
    return re.sub(r"([\\`*_\[\]<>#|~&])", r"\\\1", _one_line(text))


def _one_line(text: str) -> str:
    return visible(" ".join(text.split()))
