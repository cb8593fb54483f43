"""The files in docs/examples/ci: valid, equal to what the guide shows, and their commands run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml

from ci_models import write_models

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples" / "ci"
GUIDE = (ROOT / "docs" / "guides" / "ci.md").read_text(encoding="utf-8")
FILES = sorted(path.name for path in EXAMPLES.iterdir())


@pytest.mark.parametrize("name", FILES)
def test_the_guide_shows_the_file(name):
    blocks = re.findall(r"^```\w*\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    assert (EXAMPLES / name).read_text(encoding="utf-8") in blocks


@pytest.mark.parametrize(
    ("name", "schema"),
    [("workflow.yml", "github-workflows"), ("gitlab-ci.yml", "gitlab-ci")],
    ids=["github", "gitlab"],
)
def test_a_file_is_valid(name, schema):
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*check, EXAMPLES / name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_configuration_of_pre_commit_is_valid():
    check = [sys.executable, "-m", "pre_commit", "validate-config", EXAMPLES / "pre-commit-config.yaml"]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (repository,) = yaml.safe_load((EXAMPLES / "pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert {hook["id"] for hook in repository["hooks"]} <= {hook["id"] for hook in hooks}


def test_the_guide_describes_every_input_of_the_action():
    inputs = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))["inputs"]
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (?:`([^`]*)` )?\| ", GUIDE, re.MULTILINE))
    assert {name: rows[name] for name in inputs} == {
        name: entry.get("default", "") for name, entry in inputs.items()
    }
    steps = yaml.safe_load((EXAMPLES / "workflow.yml").read_text(encoding="utf-8"))["jobs"]["bngrad"]["steps"]
    (step,) = (step for step in steps if step["uses"].startswith("bngrad/"))
    assert set(step["with"]) <= set(inputs)


def test_the_actions_of_others_are_pinned():
    for path in (ROOT / "action.yml", EXAMPLES / "workflow.yml"):
        for action in re.findall(r"uses: (.+)", path.read_text(encoding="utf-8")):
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+|bngrad/bngrad@main", action), action


@pytest.fixture
def checkout(tmp_path):
    """A checkout with ci/check.sh, models, and a stand-in for the environment that the jobs install into."""
    write_models(tmp_path)
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "check.sh").write_bytes((EXAMPLES / "check.sh").read_bytes())
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    bngrad = tmp_path / ".venv" / "bin" / "bngrad"
    bngrad.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m bngrad "$@"\n', encoding="utf-8")
    bngrad.chmod(0o755)
    return tmp_path


def script_of_gitlab():
    return yaml.safe_load((EXAMPLES / "gitlab-ci.yml").read_text(encoding="utf-8"))["bngrad"]["script"]


def script_of_jenkins():
    return re.findall(r"^ *sh '(.+)'$", (EXAMPLES / "Jenkinsfile").read_text(encoding="utf-8"), re.MULTILINE)


SCRIPTS = {"gitlab": script_of_gitlab, "jenkins": script_of_jenkins}
REPORTS = {f"{model}.{end}" for model in ("good", "hazard", "empty") for end in ("html", "sarif", "xml")} | {
    "inspect.sarif"
}


@pytest.mark.parametrize(
    ("system", "left_out", "code"),
    [
        pytest.param("gitlab", ["hazard", "empty"], 0, marks=pytest.mark.long),
        ("gitlab", ["good", "empty"], 1),
        ("jenkins", ["good"], 2),
        pytest.param("jenkins", [], 2, marks=pytest.mark.long),
    ],
    ids=["good", "hazard", "unreadable", "all"],
)
def test_the_commands_check_every_model(system, left_out, code, checkout):
    install, *lines = SCRIPTS[system]()
    assert re.search(r"pip install .*\$BNGRAD", install)
    for name in left_out:
        (checkout / "models" / f"{name}.onnx").unlink()
    codes = [subprocess.run(["bash", "-c", line], cwd=checkout, check=False).returncode for line in lines]
    assert codes == [code]
    reports = {path.name for path in (checkout / "reports").iterdir()}
    assert reports == {name for name in REPORTS if name.split(".")[0] not in left_out}
    for path in (checkout / "reports").glob("*.xml"):
        report = ET.parse(path)  # noqa: S314
        assert not report.findall(".//failure")
        assert len(report.findall(".//error")) == (path.stem == "empty")


@pytest.mark.long
@pytest.mark.parametrize("system", SCRIPTS)
def test_a_whole_job(system, checkout):
    """Installs the checkout of bngrad, as the first line does."""
    (checkout / "models" / "hazard.onnx").unlink()
    (checkout / "models" / "empty.onnx").unlink()
    (checkout / ".venv" / "bin" / "bngrad").unlink()
    environment = os.environ | {"BNGRAD": str(ROOT)}
    for line in SCRIPTS[system]():
        subprocess.run(["bash", "-c", line], cwd=checkout, env=environment, check=True)
    assert (checkout / "reports" / "good.xml").exists()
