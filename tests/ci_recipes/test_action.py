"""The GitHub Action: valid, and each of its steps run as GitHub's runner runs it."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml

from bngrad.cli import run
from bngrad.oracle import ensure
from bngrad.oracle.environment import cache_key
from ci_models import write_models
from composite import Job

ROOT = Path(__file__).parents[2]
NO_DATA = {"against": "reference", "python-version": "3.12"}


@pytest.fixture
def workspace(tmp_path):
    folder = tmp_path / "work space"
    folder.mkdir()
    write_models(folder)
    return folder


@pytest.fixture
def installed(tmp_path):
    """A Python for the step that installs; it installs nothing, and prints that of an existing environment."""

    def make(python):
        script = tmp_path / "python"
        script.write_text(f'#!/bin/sh\ncase "$1" in */install.py) echo "{python}";; *) exit 9;; esac\n')
        script.chmod(0o755)
        return str(script)

    return make


@pytest.fixture
def job(workspace, tmp_path, installed):
    def make(**inputs):
        values = NO_DATA | {name.replace("_", "-"): value for name, value in inputs.items()}
        return Job(ROOT, workspace, tmp_path / "job", installed(sys.executable), values)

    return make


def annotations(log):
    return [line for line in log.splitlines() if re.match("::(error|warning) ", line)]


def test_the_action_is_valid():
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-actions"]
    done = subprocess.run([*check, ROOT / "action.yml"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_inputs_are_never_part_of_a_script():
    steps = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))["runs"]["steps"]
    assert not [step["name"] for step in steps if "${{" in step.get("run", "")]


def test_a_good_model_passes(job):
    action = job(models="models/good.onnx", args="--dim N=2")
    assert action.run(), action.log
    assert action.steps == {
        "Set up Python": "success",
        "Install bngrad": "success",
        "Restore the oracle": "skipped",
        "Install the oracle": "skipped",
        "Save the oracle": "skipped",
        "Check the models": "success",
        "Upload the reports": "success",
    }
    reports = action.artifacts / "bngrad-reports"
    assert {path.name for path in reports.iterdir()} == {f"models-good.{end}" for end in ("xml", "html", "sarif")}
    assert ET.parse(reports / "models-good.xml").getroot().tag == "testsuites"  # noqa: S314
    assert json.loads((reports / "models-good.sarif").read_text(encoding="utf-8"))["runs"][0]["results"] == []
    assert action.summary.read_text(encoding="utf-8").startswith("### `models/good.onnx`: passed\n")
    assert annotations(action.log) == []
    # What a command prints is no command of the runner.
    lines = action.log.splitlines()
    (start,) = (index for index, line in enumerate(lines) if line.startswith("::stop-commands::"))
    token = lines[start].removeprefix("::stop-commands::")
    assert re.fullmatch("[0-9a-f]{32}", token)
    (end,) = (index for index, line in enumerate(lines) if line == f"::{token}::")
    assert any("passed: reference" in line for line in lines[start:end])


def test_a_wrong_gradient_is_annotated_at_its_node_and_the_reports_are_kept(job):
    action = job(models="models/good.onnx", args="--dim N=2 --rewritten wrong.onnx")
    assert not action.run()
    assert (action.steps["Check the models"], action.steps["Upload the reports"]) == ("failure", "success")
    first, *_ = annotations(action.log)
    assert first.startswith(
        "::error title=bngrad%3A lock-step%3A bn_Grad/BatchNormalizationGrad_0,file=models/good.onnx::"
    )
    summary = action.summary.read_text(encoding="utf-8")
    assert summary.startswith("### `models/good.onnx`: FAILED\n")
    assert "| finding | where | message |" in summary
    reports = action.artifacts / "bngrad-reports"
    results = json.loads((reports / "models-good.sarif").read_text(encoding="utf-8"))["runs"][0]["results"]
    assert {result["level"] for result in results} == {"error"}
    assert ET.parse(reports / "models-good.xml").findall(".//failure")  # noqa: S314
    assert "FAILED" in (reports / "models-good.html").read_text(encoding="utf-8")


def test_every_model_is_checked_even_if_one_cannot_be_read(job):
    action = job(models="models/empty.onnx\n\n  models/g*.onnx\n", args="--dim N=2")
    assert not action.run()
    (line,) = annotations(action.log)
    assert line == (
        "::error title=bngrad%3A not-validated,file=models/empty.onnx::models/empty.onnx is empty; expected an "
        "ONNX model"
    )
    summary = action.summary.read_text(encoding="utf-8")
    assert [line for line in summary.splitlines() if line.startswith("###")] == [
        "### `models/empty.onnx`: ERROR",
        "### `models/good.onnx`: passed",
    ]


@pytest.mark.parametrize(
    ("fail_on", "passes"), [("hazard", False), pytest.param("none", True, marks=pytest.mark.long)]
)
def test_a_hazard_fails_if_it_is_asked_for(fail_on, passes, job):
    action = job(models="models/good.onnx\nmodels/hazard.onnx", against="none", fail_on=fail_on)
    assert action.run() is passes
    (line,) = annotations(action.log)
    assert line.startswith("::warning title=bngrad%3A running-output-internal%3A bn,file=models/hazard.onnx::")
    reports = action.artifacts / "bngrad-reports"
    assert {path.name for path in reports.iterdir()} == {"inspect.sarif"}
    summary = action.summary.read_text(encoding="utf-8")
    start = "### `bngrad inspect`: FAILED\n\n- models/hazard.onnx: bn: a running output"
    assert not summary if passes else summary.startswith(start)


def bngrad_in_this_process(command, **_):
    """The result of a command of bngrad, as `subprocess.run` returns it."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        code = run(command[3:])
    return subprocess.CompletedProcess(command, code, stderr=errors.getvalue().encode())


BAD = {
    "no-such-model": (["--models=none/*.onnx"], "no model matches 'none/*.onnx'"),
    "no-model": (["--models= \n"], "no model is named"),
    "an-unknown-option": (["--arguments=--frob"], "No such option '--frob'"),
    "an-open-quotation": (["--arguments=--wrt 'x"], "No closing quotation"),
    "nothing-but-a-help-text": (["--arguments=--help"], "nothing was validated"),
    "an-unknown-reference": (["--against=jax"], "'jax' is not one of 'ort',"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_inputs_are_annotated(case, workspace, monkeypatch, capsys):
    arguments, message = BAD[case]
    check = script("check")
    monkeypatch.chdir(workspace)
    monkeypatch.setattr(check.subprocess, "run", bngrad_in_this_process)
    options = ["--models=models/good.onnx", "--against=reference", "--reports=reports", *arguments]
    monkeypatch.setattr(sys, "argv", ["check.py", *options])
    assert check.main() == 2
    (line,) = annotations(capsys.readouterr().out)
    assert line.startswith("::error title=bngrad")
    assert message in line


def test_a_step_that_fails_fails_the_job(job):
    action = job(models="none/*.onnx")
    assert not action.run()
    assert action.steps["Check the models"] == "failure"


INJECTIONS = {
    "models": {"models": 'models/good.onnx"; touch injected; "'},
    "args": {"models": "models/good.onnx", "args": "--dim N=2; touch injected"},
    "reports and version": {
        "models": "models/good.onnx",
        "against": "none",
        "reports": "out$(touch injected)",
        "version": "`touch injected`",
    },
}


@pytest.mark.parametrize("case", INJECTIONS)
def test_inputs_are_not_commands(case, job, workspace):
    job(**INJECTIONS[case]).run()
    assert not (workspace / "injected").exists()


def test_nothing_is_checked_if_the_installation_fails(job, tmp_path):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 3\n", encoding="utf-8")
    broken.chmod(0o755)
    action = job(models="models/good.onnx")
    action.python = str(broken)
    assert not action.run()
    assert (action.steps["Install bngrad"], action.steps["Check the models"]) == ("failure", "skipped")


def test_a_cached_oracle_is_restored_and_not_saved_again(job, tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    environment = ensure()
    (store / environment.path.name).symlink_to(environment.path)
    run = job(models="models/good.onnx", args="--dim N=2", against="ort")
    run.cache = {f"bngrad-oracle-{cache_key()}": store}
    assert run.run(), run.log
    assert [run.steps[f"{what} the oracle"] for what in ("Restore", "Install", "Save")] == [
        "success",
        "success",
        "skipped",
    ]
    assert run.summary.read_text(encoding="utf-8").startswith("### `models/good.onnx`: passed\n")


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_whole_action(workspace, tmp_path, installed):
    """Installs the checkout and the oracle; another job finds the oracle in the cache."""
    inputs = {"models": "models/good.onnx", "args": "--dim N=2"}
    first = Job(ROOT, workspace, tmp_path / "first", sys.executable, inputs)
    assert first.run(), first.log
    assert first.steps["Save the oracle"] == "success"
    (key,) = first.cache
    python = installed(first.temp / "bngrad" / "bin" / "python")
    inputs["artifact"] = ""
    second = Job(ROOT, workspace, tmp_path / "second", python, inputs, dict(first.cache))
    assert second.run(), second.log
    assert list(second.cache) == [key]
    assert (second.steps["Save the oracle"], second.steps["Upload the reports"]) == ("skipped", "skipped")


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / ".github" / "action" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("version", "against", "expected"),
    [
        ("", "ort", str(ROOT)),
        ("", "torch", f"{ROOT}[torch]"),
        ("1.2.0", "ort", "bngrad==1.2.0"),
        ("1.2.0rc1", "torch", "bngrad[torch]==1.2.0rc1"),
        ("dist/bngrad-1.2.0-py3-none-any.whl", "ort", "dist/bngrad-1.2.0-py3-none-any.whl"),
        ("bngrad>=1", "torch", "bngrad>=1"),
    ],
    ids=["checkout", "checkout-torch", "release", "release-torch", "wheel", "requirement"],
)
def test_what_is_installed(version, against, expected):
    assert script("install").requirement(version, against) == expected


def test_a_folder_that_cannot_be_made_is_an_error(workspace):
    check = [sys.executable, ROOT / ".github" / "action" / "check.py", "--models=models/good.onnx"]
    done = subprocess.run(
        [*check, "--reports=models/good.onnx"], cwd=workspace, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.startswith("::error title=bngrad::[Errno 17] File exists")


def test_reports_of_different_models_have_different_names():
    models = ["a/b.onnx", "a-b.onnx", "A-B.onnx", "../c.onnx", "ü n.onnx", "...", "model.txt", "inspect.onnx"]
    assert script("check").names(models) == [
        "a-b",
        "a-b-2",
        "A-B-3",
        "c",
        "ü-n",
        "model",
        "model.txt",
        "inspect-2",
    ]
