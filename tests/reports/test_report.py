"""The verdict of a report in every form: nothing compared is nothing proved."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from bngrad.reports.html.validation import write_html
from bngrad.reports.junit import write_junit
from bngrad.reports.summary import write_summary
from bngrad.reports.text import print_text
from bngrad.validation.report import ALL_GRADIENTS, Check, Report, Row


def row(*, passed):
    return Row("n", "t", "gradient", "function", "ort", 1.0, 1.0, 1.0, passed=passed)


def check(*rows, **fields):
    return Check("some check", unit="relative", limit=1.0, rows=list(rows), **fields)


def report(*checks):
    return Report("m.onnx", {}, "numeric", ["function"], 0, {}, checks=list(checks))


PASSED = {
    "one-row": report(check(row(passed=True))),
    "beside-a-check-that-was-not-made": report(check(skipped="too large"), check(row(passed=True))),
    "beside-an-undecided-one": report(check(row(passed=True), undecided={"w": "a kink"})),
}
FAILED = {
    "no-check": (report(), "nothing was compared"),
    "no-row": (report(check()), "some check: nothing was compared"),
    "no-row-beside-a-good-check": (report(check(row(passed=True)), check()), "some check: nothing was compared"),
    "no-check-made": (
        report(check(skipped="too large"), check(skipped="no op")),
        "nothing was compared (some check: skipped, too large; some check: skipped, no op)",
    ),
    "a-required-check-was-not-made": (
        report(check(row(passed=True)), check(skipped="too large", required=True)),
        "some check: skipped, too large",
    ),
    "all-undecided": (
        report(check(undecided={"w_grad": "a kink"})),
        "some check: nothing was compared (w_grad: a kink)",
    ),
    "a-row": (report(check(row(passed=True), row(passed=False))), "some check: 1 of 2 comparisons failed"),
    "several": (
        report(check(row(passed=False)), check(), check(skipped="too large")),
        "some check: 1 of 1 comparisons failed; some check: nothing was compared",
    ),
}


def text_of(result):
    stream = io.StringIO()
    print_text(result, Console(file=stream, width=500))
    return stream.getvalue()


def junit_of(result, folder):
    write_junit(result, folder / "report.xml")
    return ET.parse(folder / "report.xml").getroot()  # noqa: S314 - our own


@pytest.mark.parametrize("case", PASSED)
def test_what_passes(case, tmp_path):
    result = PASSED[case]
    assert result.passed
    assert result.reason == ""
    document = json.loads(json.dumps(result.to_dict()))
    assert (document["passed"], document["reason"]) == (True, "")
    assert "passed: numeric" in text_of(result)
    assert "FAILED" not in text_of(result)
    assert not list(junit_of(result, tmp_path).iter("failure"))


@pytest.mark.parametrize("case", FAILED)
def test_what_fails_says_why_in_every_form(case, tmp_path):
    result, reason = FAILED[case]
    assert not result.passed
    assert result.reason == reason
    document = json.loads(json.dumps(result.to_dict()))
    assert (document["passed"], document["reason"]) == (False, reason)
    verdict = "FAILED" if any(check.failures for check in result.checks) else "INCOMPLETE"
    assert f"{verdict}: numeric" in text_of(result)
    assert f"{verdict}: {reason}" in str(result)
    assert document["verdict"] == verdict.lower()
    assert reason in text_of(result)
    write_html(result, tmp_path / "report.html")
    assert f"</svg> {verdict if verdict == 'FAILED' else 'Incomplete'}</h1>" in (
        tmp_path / "report.html"
    ).read_text(encoding="utf-8")
    root = junit_of(result, tmp_path)
    assert [f.get("message") for f in root.iterfind("testsuite[@name='report']//failure")] == [reason]
    for suite in root.iter("testsuite"):
        assert int(suite.get("tests", "0")) == len(list(suite.iter("testcase")))
        assert int(suite.get("failures", "0")) == len(list(suite.iter("failure")))
        assert int(suite.get("skipped", "0")) == len(list(suite.iter("skipped")))


def test_a_check_counts_what_it_could_not_decide(tmp_path):
    result = report(check(row(passed=True), undecided={"w_grad": "a kink"}, notes=["2 kinks"]))
    assert "not compared: w_grad: a kink" in text_of(result)
    assert "note: 2 kinks" in text_of(result)
    assert [s.get("message") for s in junit_of(result, tmp_path).iter("skipped")] == ["a kink"]
    assert result.to_dict()["checks"][0]["undecided"] == {"w_grad": "a kink"}


def test_an_incomplete_report_names_what_can_decide():
    result = report(check(row(passed=True)), check(skipped="an op", required=True))
    result.other_references = ["torch", "ort"]
    advice = "No comparison failed. --against torch or --against ort can decide."
    assert result.advice == result.to_dict()["advice"] == advice
    assert advice in text_of(result)
    assert replace(result, checks=[check(row(passed=True))]).advice == ""
    assert replace(result, checks=[*result.checks, check(row(passed=False))]).verdict == "failed"


def test_another_reference_than_was_asked_for_is_said_in_every_form(tmp_path):
    result = report(replace(check(row(passed=True)), name="float64"))
    result = replace(result, against="reference", instead_of="ort")
    document = result.to_dict()
    assert (document["passed"], document["against"], document["instead_of"]) == (True, "reference", "ort")
    assert text_of(result).splitlines()[-1].startswith("passed: reference instead of ort, seed 0, ")
    assert str(result).splitlines()[0] == "m.onnx: reference instead of ort"
    write_summary(result, tmp_path / "summary.md")
    assert "Against reference instead of ort, seed 0" in (tmp_path / "summary.md").read_text(encoding="utf-8")
    write_html(result, tmp_path / "report.html")
    assert "reference instead of ort" in (tmp_path / "report.html").read_text(encoding="utf-8")
    suite = junit_of(result, tmp_path).find("testsuite[@name='report']")
    assert [(case.get("name"), [part.tag for part in case]) for case in suite] == [
        ("reference", []),
        ("ort", ["skipped"]),
    ]
    assert (suite.get("tests"), suite.get("skipped")) == ("2", "1")


@pytest.mark.parametrize("values", [[0.5, math.nan], [math.nan, 0.5], [math.nan, math.inf, 2.0]], ids=str)
def test_nan_is_the_worst_of_a_table(values):
    rows = [Row("n", "t", "gradient", "function", "ort", v, v, v, passed=v <= 1) for v in values]
    (line,) = (line for line in text_of(report(check(*rows))).splitlines() if line.split()[:1] == ["gradient"])
    assert line.split()[-3:] == ["nan"] * 3


def test_values_of_one_reason_are_named_together():
    """A network may have hundreds."""
    result = report(
        check(undecided={**{f"w{index}": "a kink" for index in range(5)}, "v": "its group"}, required=True)
    )
    assert result.checks[0].not_compared() == ["w0, w1, w2 and 2 others: a kink", "v: its group"]
    assert result.reason == "some check: nothing was compared (w0, w1, w2 and 2 others: a kink; v: its group)"
    assert "not compared: w0, w1, w2 and 2 others: a kink\n" in text_of(result)


def test_a_required_check_that_leaves_values_undecided_is_incomplete():
    undecided = check(row(passed=True), undecided={"w_grad": "a kink"}, required=True)
    result = report(undecided)
    result.other_references = ["torch"]
    assert (result.verdict, result.reason) == ("incomplete", "some check: 1 of 2 values could not be decided")
    assert result.advice == "No comparison failed. --against torch can decide."
    assert replace(result, checks=[undecided, check(row(passed=False))]).verdict == "failed"
    unfit = check(undecided={ALL_GRADIENTS: "the loss is nan"}, required=True)
    assert replace(result, checks=[unfit]).advice == ""
