"""The findings of `validate` and `inspect`, one for each problem and node, for the formats of CI systems."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bngrad.inspection.diagnostic import Diagnostic
from bngrad.reports.rules import BY_KIND, CHECKS, HAZARDS, NOT_VALIDATED, NOTHING_COMPARED, UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bngrad.inspection.inspect import Inspection
    from bngrad.reports.rules import Level, Rule
    from bngrad.validation.report import Check, Report, Row

_SEVERITY = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One problem."""

    rule: Rule
    level: Level
    message: str
    model: str
    """The path of the model, as it was given."""
    subject: str = ""
    """The node or the value; empty if the finding concerns the whole model."""
    path: str = ""
    """The subject after the names of the nodes or functions that contain it, see `bngrad.graph.node_paths`."""
    is_node: bool = True
    """True if the subject is a node, not a value."""


def findings_of_report(report: Report) -> list[Finding]:
    """Returns the findings of a validation, errors first; one at least is an error if it did not pass.

    A node or an output that failed a check is one finding, whatever the number of its tensors and implementations.
    What was not compared is a note; a required check that was skipped is an error.
    """
    findings = [finding for check in report.checks for finding in _of_check(report.model, check)]
    findings += _of_texts(report.model, report.warnings)
    if report.error:
        findings.append(Finding(NOT_VALIDATED, "error", report.error, report.model))
    elif not report.passed and not any(finding.level == "error" for finding in findings):
        findings.append(Finding(NOTHING_COMPARED, "error", report.reason, report.model))
    return _sorted(findings)


def findings_of_inspection(model: str, inspection: Inspection) -> list[Finding]:
    """Returns the hazards and the warnings of a model."""
    hazards = [
        Finding(BY_KIND[hazard.kind], "warning", f"{norm.path}: {hazard}", model, norm.name, norm.path)
        for norm in inspection.batch_norms
        for hazard in norm.hazards
    ]
    return [*hazards, *_of_texts(model, inspection.warnings)]


def fails(finding: Finding, fail_on: str) -> bool:
    """Returns whether a finding of `inspect` fails it: a hazard, or for ``warning`` also a warning."""
    return fail_on != "none" and finding.level == "warning" and (fail_on == "warning" or finding.rule in HAZARDS)


def unreadable(model: str, message: str) -> Finding:
    """Returns the finding for a model that could not be inspected."""
    return Finding(UNREADABLE, "error", message, model)


def _of_check(model: str, check: Check) -> Iterator[Finding]:
    rule = CHECKS[check.name]
    if check.skipped:
        level: Level = "error" if check.required else "note"
        yield Finding(rule, level, f"{check.name}: {check.problem}", model)
    elif not check.rows:
        yield Finding(NOTHING_COMPARED, "error", f"{check.name}: {check.problem}", model)
    subjects: dict[str, list[Row]] = {}
    for row in check.failures:
        subjects.setdefault(row.subject, []).append(row)
    compared = Counter(row.subject for row in check.rows)
    is_node = check.name == "lock-step"
    for subject, failed in subjects.items():
        message = _failure(check, failed[0], len(failed), compared[subject])
        yield Finding(rule, "error", message, model, subject, subject, is_node)
    for name, reason in check.undecided.items():
        message = f"{check.name}: {name} was not compared: {reason}"
        yield Finding(rule, "error" if check.required else "note", message, model, name, name, is_node)


def _failure(check: Check, worst: Row, failed: int, compared: int) -> str:
    """Returns the message for a subject: how many comparisons failed, and the worst."""
    tensor = "" if worst.tensor == worst.subject else f" {worst.tensor}"
    note = f" ({worst.note})" if worst.note else ""
    return (
        f"{check.name}: {worst.subject} ({worst.kind}): {failed} of {compared} comparisons failed; worst:{tensor} "
        f"{worst.implementation} against {worst.against}, {worst.measure:.3g} {check.unit}, at most "
        f"{check.limit:g}{note}"
    )


def _of_texts(model: str, texts: Iterable[str]) -> list[Finding]:
    """Returns the findings for the warnings about a model."""
    return [Finding(BY_KIND[text.kind], "warning", text, model) for text in texts if isinstance(text, Diagnostic)]


def _sorted(findings: list[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: _SEVERITY.index(finding.level))
