"""Annotations and the summary for a CI job's page: nothing in a name can leave its place."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import pytest

from bngrad.reports.annotations import MAX, annotation, write_report_annotations
from bngrad.reports.summary import write_summary
from bngrad.validation.report import VERDICTS
from report_cases import ALL, BAD, FAILED, PASSED, lock_step, report, row


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def annotations(report):
    write_report_annotations(report, Path("out.txt"))
    return Path("out.txt").read_text(encoding="utf-8").splitlines()


def summary(report):
    write_summary(report, Path("out.md"))
    return Path("out.md").read_text(encoding="utf-8")


def parsed(line):
    """Parses a line as the runner of GitHub does: the command, its properties, its message."""
    assert line.startswith("::")
    head, _, message = line[2:].partition("::")
    command, _, listed = head.partition(" ")
    properties = dict(entry.split("=", 1) for entry in listed.split(","))
    return command, {name: unquote(value) for name, value in properties.items()}, unquote(message)


def test_an_annotation_names_the_file_and_the_node():
    (line,) = annotations(FAILED["node"])
    command, properties, message = parsed(line)
    assert command == "error"
    assert properties == {"title": "bngrad: lock-step: bn", "file": "m.onnx"}
    assert message.startswith("lock-step: bn (BatchNormalizationGrad): 2 of 2 comparisons failed")


def test_names_are_escaped():
    (line,) = annotations(FAILED["odd-names"])
    _, properties, message = parsed(line)
    assert properties["file"] == "models/a b,c%.onnx"
    assert properties["title"].endswith("a|b`c\n::error::x%")
    assert "a|b`c\n::error::x%" in message


@pytest.mark.parametrize("case", ALL)
def test_errors_and_warnings_are_annotated_and_notes_are_not(case):
    levels = [parsed(line)[0] for line in annotations(ALL[case])]
    assert set(levels) == ({"error"} if case in FAILED else {"warning"} if case == "warning" else set())


@pytest.mark.parametrize(("count", "last"), [(MAX, "lock-step: n9"), (MAX + 1, "2 more errors"), (99, "90 more")])
def test_no_more_than_github_shows(count, last):
    lines = annotations(report(lock_step(*(row(f"n{index}", **BAD) for index in range(count)))))
    assert len(lines) == MAX
    assert parsed(lines[-1])[2].startswith(last)


def test_every_line_break_is_escaped():
    assert annotation("error", "a\r\nb", title="c\n,:d") == "::error title=c%0A%2C%3Ad::a%0D%0Ab"


@pytest.mark.parametrize("case", ALL)
def test_a_summary_has_the_verdict_and_every_check(case):
    report = ALL[case]
    lines = summary(report).splitlines()
    assert lines[0].startswith("### `")
    assert lines[0].endswith(f": {VERDICTS[report.verdict]}")
    assert (report.verdict == "passed") == (case in PASSED)
    for check in report.checks:
        assert sum(line.startswith(f"| {check.name} | ") for line in lines) >= 1
    assert ("| finding | where | message |" in lines) == (case in FAILED or case == "warning")


def test_a_summary_has_its_columns_whatever_the_names_are():
    table = [line for line in summary(FAILED["odd-names"]).splitlines() if line.startswith("| lock-step | ``")]
    (line,) = table
    assert line.startswith(r"| lock-step | `` a\|b`c ::error::x% `` | ")
    assert line.replace(r"\|", "").count("|") == 4


def test_a_summary_is_not_longer_than_a_page():
    text = summary(report(lock_step(*(row(f"n{index}", **BAD) for index in range(80)))))
    assert text.count("| lock-step | `n") == 50
    assert "30 more are in the report." in text
