"""The findings of a validation and of an inspection."""

from __future__ import annotations

import ast
import inspect as python_inspect
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

import bngrad
from bngrad.inspection import inspect as inspection
from bngrad.inspection import model_warnings
from bngrad.inspection.inspect import inspect
from bngrad.reports import rules
from bngrad.reports.findings import fails, findings_of_inspection, findings_of_report, unreadable
from report_cases import ALL, FAILED, PASSED

ROOT = Path(__file__).parents[2]


def found(report):
    return [(finding.rule.id, finding.level, finding.path) for finding in findings_of_report(report)]


EXPECTED = {
    "passed": [],
    "skipped": [("central-differences", "note", "")],
    "undecided": [("central-differences", "note", "v_grad")],
    "warning": [("tied-weights", "warning", "")],
    "node": [("lock-step", "error", "bn")],
    "two-nodes": [("lock-step", "error", "bn"), ("lock-step", "error", "other")],
    "value": [("central-differences", "error", "w_grad")],
    "nan": [("lock-step", "error", "bn")],
    "odd-names": [("lock-step", "error", "a|b`c\n::error::x%")],
    "no-row": [("nothing-compared", "error", "")],
    "required-and-skipped": [("central-differences", "error", "")],
    "all-skipped": [("nothing-compared", "error", ""), ("lock-step", "note", "")],
    "no-check": [("nothing-compared", "error", "")],
}


@pytest.mark.parametrize("case", ALL)
def test_the_findings_of_a_report(case):
    assert sorted(found(ALL[case])) == sorted(EXPECTED[case])


@pytest.mark.parametrize("case", FAILED)
def test_a_report_that_did_not_pass_has_an_error_first(case):
    assert found(FAILED[case])[0][1] == "error"


@pytest.mark.parametrize("case", PASSED)
def test_a_report_that_passed_has_no_error(case):
    assert "error" not in {level for _, level, _ in found(PASSED[case])}


def test_the_message_has_the_counts_and_the_worst():
    (finding,) = findings_of_report(FAILED["node"])
    assert finding.message == (
        "lock-step: bn (BatchNormalizationGrad): 2 of 2 comparisons failed; worst: dx native against ort, 7 of "
        "its bound, at most 1"
    )


def test_every_check_has_a_rule():
    """A check that is added in validation/ has to be added to the rules."""
    names = {
        argument.value
        for path in (Path(bngrad.__file__).parent / "validation").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Check"
        for argument in node.args[:1]
        if isinstance(argument, ast.Constant)
    }
    assert names == set(rules.CHECKS)


def test_every_hazard_and_warning_has_a_rule():
    used = set()
    for module in (inspection, model_warnings):
        tree = ast.parse(python_inspect.getsource(module))
        used |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)} & set(rules.BY_KIND)
    assert used == set(rules.BY_KIND)


RULES = [*rules.CHECKS.values(), rules.NOTHING_COMPARED, *rules.HAZARDS, *rules.WARNINGS, rules.UNREADABLE]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_the_page_of_a_rule_exists(rule):
    page, _, anchor = rule.page.partition("#")
    assert page.endswith(".html"), "the site has a file for each page, no folder"
    text = (ROOT / "docs" / page).with_suffix(".md").read_text(encoding="utf-8")
    assert not anchor or f"\n## {anchor.replace('-', ' ').capitalize()}\n" in text


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (
            ["Homepage, https://a.example/", "Documentation, https://d.example/x/"],
            "https://d.example/x/guides/ci.html",
        ),
        (["Documentation, https://d.example"], "https://d.example/guides/ci.html"),
        ([], None),
    ],
    ids=["slash", "no-slash", "none"],
)
def test_the_address_of_a_page_is_from_the_metadata(entries, expected, monkeypatch):
    class Metadata:
        def get_all(self, name, missing):
            assert name == "Project-URL"
            return entries or missing

    monkeypatch.setattr(rules, "metadata", lambda _name: Metadata())
    assert rules.Rule("x", "", "", "", "guides/ci.html", "note").url == expected


HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'
IN_A_BRANCH = """g (bool c, float[2,3] x) => (float[2,3] y) <float[3] s = {1, 1, 1}, float[3] b = {0, 0, 0},
        float[3] m = {0, 0, 0}, float[3] v = {1, 1, 1}> {
    [if] y = If (c) <then_branch = t () => (float[2,3] a) {
                         [bn] a = BatchNormalization <training_mode = 1> (x, s, b, m, v) },
                     else_branch = e () => (float[2,3] a) { a = Relu(x) }> }"""


def test_a_hazard_in_a_branch_has_its_path():
    (hazard,) = findings_of_inspection(
        "m.onnx", inspect(ir.from_proto(onnx.parser.parse_model(HEADER + IN_A_BRANCH)))
    )
    assert (hazard.rule.id, hazard.subject, hazard.path) == ("running-output-missing", "bn", "if::then_branch::bn")
    assert hazard.message.startswith("if::then_branch::bn: a running output is left out")
    assert [fails(hazard, level) for level in ("none", "hazard", "warning")] == [False, True, True]


def test_a_model_that_cannot_be_read_is_an_error():
    finding = unreadable("m.onnx", "m.onnx is empty")
    assert (finding.rule.id, finding.level, finding.message) == ("unreadable-model", "error", "m.onnx is empty")
