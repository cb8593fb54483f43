"""Tests that the rows agree with pyproject.toml and with the library, and that the report has the results."""

from __future__ import annotations

import re

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import report
import trial
from bngrad.runtime import versions
from project_metadata import ROOT
from rows import ENDS, ONNXRUNTIME, REFUSED, TRAINING, dependencies, floor, rows
from run_matrix import BASE, DOCUMENT, is_as_expected

DEPENDENCIES = dependencies()
ROWS = {row.name: row for row in rows()}


@pytest.mark.parametrize("package", DEPENDENCIES)
def test_every_dependency_has_a_floor_and_no_ceiling(package):
    """Without a ceiling, the newest releases of the matrix are those that pip installs."""
    assert floor(package)


def test_what_is_checked_at_run_time_is_what_pip_is_asked_for():
    """Reads the installed package, whose metadata come from pyproject.toml."""
    stated = {name: Requirement(line).specifier for name, line in DEPENDENCIES.items()}
    assert versions.floors() == stated
    assert set(versions.IMPORTED) < set(stated)


def test_the_oldest_row_has_every_floor():
    assert set(ROWS["all oldest"].pins) == {f"{name}=={floor(name)}" for name in DEPENDENCIES}


@pytest.mark.parametrize("package", ENDS)
def test_a_row_has_the_oldest_of_one_package(package):
    assert ROWS[f"oldest {package}"].pins == (f"{package}=={floor(package)}",)


@pytest.mark.parametrize("name", [name for name in ROWS if name.startswith("all newest")])
def test_nothing_holds_back_the_newest(name):
    assert ROWS[name].requirements() == list(DEPENDENCIES.values())


def test_the_first_row_is_of_the_release_that_the_library_needs():
    """The C++ sources, pyproject.toml and the table state the same oldest ONNX Runtime."""
    (named,) = re.findall(r'kApiVersionName = "([\d.]+)"', (ROOT / "ops/ort/abi.hpp").read_text(encoding="utf-8"))
    assert named == floor("onnxruntime")
    assert Version(named).release == Version(next(iter(ONNXRUNTIME))).release[:2]


def test_releases_are_in_order_and_none_is_older_than_the_floor():
    releases = [Version(version) for version in ONNXRUNTIME]
    assert releases == sorted(releases)
    assert min(releases) >= Version(floor("onnxruntime"))
    assert BASE.removeprefix("onnxruntime ") == str(max(releases))


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_row_asks_for_nothing_that_the_check_refuses(row):
    pins = {Requirement(pin).name: Requirement(pin).specifier for pin in row.pins}
    for package, specifier in pins.items():
        stands_for = "onnxruntime" if row.replaced and package.startswith("onnxruntime") else package
        for pin in specifier:
            if pin.operator == "==":
                assert Requirement(DEPENDENCIES[stands_for]).specifier.contains(pin.version)
    exact = {name: pin.version for name, versions_ in pins.items() for pin in versions_ if pin.operator == "=="}
    for conflict in versions.CONFLICTS:
        for name in (conflict.package, *versions.OTHER_NAMES[conflict.package]):
            if name in exact and exact[name].startswith("1.17."):  # newer ones before the fix say it to pip
                assert str(pins[conflict.other]) == "<2"


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_training_build_stands_in_for_onnxruntime(row):
    names = {Requirement(requirement).name for requirement in row.requirements()}
    builds = names & {"onnxruntime", *(name for name, _ in TRAINING)}
    assert len(builds) == 1
    assert builds <= {"onnxruntime", *versions.OTHER_NAMES["onnxruntime"]}


@pytest.mark.parametrize("refusal", REFUSED, ids=lambda refusal: refusal.name)
def test_a_refused_release_is_below_its_floor_or_in_a_conflict(refusal):
    below = Version(refusal.version) < Version(floor(refusal.package))
    assert below or refusal.package in {conflict.package for conflict in versions.CONFLICTS}
    assert refusal.package in {*ENDS, "onnxruntime"}


def test_no_two_rows_have_one_name():
    names = [*(row.name for row in rows()), *(refusal.name for refusal in REFUSED)]
    assert len(set(names)) == len(names)


def test_every_package_with_a_row_has_a_refused_release():
    assert {refusal.package for refusal in REFUSED} == {*ENDS, "onnxruntime"}


# ---- the report ----

PASSED = {
    "name": "onnxruntime 1.31.1",
    "expected": "works",
    "python": "3.11.7",
    "packages": {"onnxruntime": "1.31.1", "onnx": "1.23.2", "numpy": "2.4.6"},
    "suites": {
        "ops": {"passed": 9, "failed": 0, "skipped": 1},
        "package": {"passed": 5, "failed": 0, "skipped": 0},
    },
    "outcome": "passed",
    "remarks": ["skipped: no bfloat16 | here (1: test_bfloat16)"],
}
ABSENT = {
    "name": "onnxruntime-training 1.17.1",
    "expected": "works",
    "python": "3.11",
    "packages": {},
    "outcome": "not installable",
    "remarks": ["No matching distribution found for onnxruntime-training==1.17.1"],
}
TRAINED = PASSED | {"name": "t", "packages": {"onnxruntime-training-cpu": "1.19.2"}, "remarks": []}
FAILED = PASSED | {"outcome": "failed", "suites": {"ops": {"passed": 0, "failed": 2, "skipped": 0}}}
VERSIONS, NONE = "1.31.1 | 1.23.2 | - | - | - | 2.4.6", "| - | - | - | - | -"
REFUSAL = {
    "name": "onnx 1.16.2",
    "expected": "refused",
    "packages": {"onnx": "1.16.2"},
    "outcome": "refused",
    "remarks": ["onnx 1.16.2 is unsupported: bngrad requires onnx>=1.17"],
}


@pytest.mark.parametrize(
    ("result", "line"),
    [
        (PASSED, f"| onnxruntime 1.31.1 | 3.11.7 | {VERSIONS} | 9 passed, 1 skipped | 5 passed | passed |"),
        (PASSED, "- onnxruntime 1.31.1: `skipped: no bfloat16 \\| here (1: test_bfloat16)`"),
        (ABSENT, f"| onnxruntime-training 1.17.1 | 3.11 | - {NONE} | - | - | **not installable** |"),
        (ABSENT, f"- onnxruntime-training 1.17.1: `{ABSENT['remarks'][0]}`"),
        (TRAINED, f"| t | 3.11.7 | 1.19.2 (training-cpu) {NONE} | 9 passed, 1 skipped | 5 passed | passed |"),
        (FAILED, f"| onnxruntime 1.31.1 | 3.11.7 | {VERSIONS} | 0 passed, 2 failed | - | **failed** |"),
        (REFUSAL, "| onnx 1.16.2 | refused | `onnx 1.16.2 is unsupported: bngrad requires onnx>=1.17` |"),
    ],
)  # fmt: skip
def test_a_line_of_the_report(result, line):
    assert line in report.tables([result]).splitlines()


def test_the_report_replaces_what_is_between_its_marks(tmp_path):
    path = tmp_path / "versions.md"
    path.write_text(f"# Versions\n\n{report.BEGIN}\nold\n{report.END}\n\nafter\n", encoding="utf-8")
    for _ in range(2):
        report.write(path, [PASSED])
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"# Versions\n\n{report.BEGIN}\n\n| environment |")
    assert text.endswith(f"{report.END}\n\nafter\n")
    assert "old" not in text
    assert text.count(report.BEGIN) == 1


@pytest.mark.parametrize(
    ("result", "as_expected"),
    [(PASSED, True), (ABSENT, False), (FAILED, False), (REFUSAL, True), (REFUSAL | {"outcome": "failed"}, False)],
)
def test_what_counts_as_expected(result, as_expected):
    assert is_as_expected(result) == as_expected


def test_the_document_has_a_line_for_every_row():
    document = DOCUMENT.read_text(encoding="utf-8")
    for name in [*ROWS, *(refusal.name for refusal in REFUSED)]:
        assert f"| {name} | " in document, f"run make matrix: {name} is not in {DOCUMENT.name}"


@pytest.mark.parametrize(
    ("printed", "line"),
    [
        (
            "WARNING: Location is ignored\nERROR: Could not find x==9\nERROR: No matching distribution for x==9\n",
            "Could not find x==9 No matching distribution for x==9",
        ),
        ("numpy 2.0 has requirement y, but you have z\n", "numpy 2.0 has requirement y, but you have z"),
        ("", ""),
    ],
)
def test_what_pip_says_went_wrong(printed, line):
    assert trial._error_line(printed) == line
