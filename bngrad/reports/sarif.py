"""Writes findings as SARIF 2.1.0, the format of code scanning.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/sarif-v2.1.0-errata01-os-complete.html
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import bngrad
from bngrad.io.writing import write_text
from bngrad.reports.findings import findings_of_report
from bngrad.reports.rules import (
    CHECKS,
    HAZARDS,
    NOT_VALIDATED,
    NOTHING_COMPARED,
    UNREADABLE,
    WARNINGS,
    project_url,
)
from bngrad.reports.visible import LINES, visible
from bngrad.validation.report import EXIT_CODES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bngrad.reports.findings import Finding
    from bngrad.reports.rules import Rule
    from bngrad.validation.report import Report

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_ROOT = "%SRCROOT%"
"""The base of relative addresses: the current folder, which is the root of a checkout in a CI job."""

RULES: dict[str, list[Rule]] = {
    "validate": [*CHECKS.values(), NOTHING_COMPARED, *WARNINGS, NOT_VALIDATED],
    "inspect": [*HAZARDS, *WARNINGS, UNREADABLE],
}
"""The rules of each command."""


def write_sarif(
    path: Path,
    command: str,
    models: Sequence[str],
    findings: Sequence[Finding],
    *,
    exit_code: int,
    category: str = "",
    notes: Sequence[str] = (),
) -> None:
    """Writes findings as a SARIF log of one run.

    Args:
        path: The file to write.
        command: ``validate`` or ``inspect``.
        models: The paths of the models, as they were given.
        findings: The findings. A check that passed is not a result.
        exit_code: The exit code of the command: 2 means that it was not executed successfully.
        category: The name of this run among others uploaded to code scanning together, which takes one run
            of each category; by default, the command.
        notes: Further notes of the command.

    Raises:
        InputError: The file cannot be written.
    """
    rules = RULES[command]
    driver = {
        "name": "bngrad",
        "version": bngrad.__version__,
        "informationUri": project_url("Documentation"),
        "rules": [_rule(rule) for rule in rules],
    }
    invocation = {
        "executionSuccessful": exit_code != 2,
        "exitCode": exit_code,
        "toolExecutionNotifications": [{"level": "note", "message": {"text": note}} for note in notes],
    }
    run = {
        "tool": {"driver": _known(driver)},
        "automationDetails": {"id": f"bngrad/{category or command}/"},
        "invocations": [invocation],
        "originalUriBaseIds": {_ROOT: {"description": {"text": "The folder in which bngrad was run."}}},
        "artifacts": [{"location": _artifact(model), "roles": ["analysisTarget"]} for model in models],
        "results": [*_results(findings, rules, models)],
    }
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    write_text(path, json.dumps(log, indent=2) + "\n")


def write_report_sarif(report: Report, path: Path) -> None:
    """Writes the report of a validation as SARIF; its notes are notifications.

    Raises:
        InputError: The file cannot be written.
    """
    findings = findings_of_report(report)
    write_sarif(
        path,
        "validate",
        [report.model],
        findings,
        exit_code=2 if report.error else EXIT_CODES[report.verdict],
        category=f"validate/{report.against}/{_uri(report.model)}",
        notes=report.notes,
    )


def _known(properties: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in properties.items() if value is not None}


def _rule(rule: Rule) -> dict[str, Any]:
    more = f" [Documentation]({rule.url})" if rule.url else ""
    properties = {
        "id": rule.id,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.description},
        "help": {"text": rule.remedy, "markdown": f"{rule.remedy}{more}"},
        "helpUri": rule.url,
        "defaultConfiguration": {"level": rule.level},
    }
    return _known(properties)


def _results(
    findings: Sequence[Finding], rules: Sequence[Rule], models: Sequence[str]
) -> Iterator[dict[str, Any]]:
    seen: Counter[str] = Counter()
    for finding in findings:
        digest = _digest(finding)
        seen[digest] += 1
        fingerprint = f"{digest}:{seen[digest]}"
        yield {
            "ruleId": finding.rule.id,
            "ruleIndex": rules.index(finding.rule),
            "level": finding.level,
            "message": {"text": visible(finding.message, keep=LINES)},
            "locations": [_location(finding, models.index(finding.model))],
            # The second is the only one that GitHub reads.
            "partialFingerprints": {"finding/v1": fingerprint, "primaryLocationLineHash": fingerprint},
        }


def _location(finding: Finding, index: int) -> dict[str, Any]:
    # No region: a model is a binary file, and code scanning hashes the line of a region for its own fingerprint.
    location: dict[str, Any] = {
        "physicalLocation": {"artifactLocation": _artifact(finding.model) | {"index": index}}
    }
    if finding.subject:
        kind = "node" if finding.is_node else "value"
        names = {"name": finding.subject, "fullyQualifiedName": finding.path, "kind": kind}
        location["logicalLocations"] = [names]
    return location


def _digest(finding: Finding) -> str:
    """Returns a hash of what a finding is about: its node or value, else its text; no measured value is in it."""
    about = finding.path or finding.message
    key = json.dumps([finding.rule.id, finding.level, _uri(finding.model), about])
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def _artifact(model: str) -> dict[str, Any]:
    uri = _uri(model)
    return {"uri": uri} if uri.startswith("file:") else {"uri": uri, "uriBaseId": _ROOT}


def _uri(model: str) -> str:
    """Returns the address of a file: relative to the current folder, or absolute if it is outside of it."""
    path = Path(os.path.abspath(model))  # noqa: PTH100 - without "..", and without following links
    if not path.is_relative_to(Path.cwd()):
        return path.as_uri()
    return quote(os.fsencode(path.relative_to(Path.cwd()).as_posix()))
