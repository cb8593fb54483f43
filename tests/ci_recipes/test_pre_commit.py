"""The hook of pre-commit, run by pre-commit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ci_models import write_models

ROOT = Path(__file__).parents[2]
MANIFEST = ROOT / ".pre-commit-hooks.yaml"


@pytest.fixture
def pre_commit(tmp_path):
    """Runs pre-commit in a git repository with models; returns the exit code and the output."""
    folder = tmp_path / "repository"
    folder.mkdir()
    write_models(folder)
    (folder / "notes.txt").write_text("not a model\n", encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"PRE_COMMIT_HOME": str(tmp_path / "cache"), "PRE_COMMIT_COLOR": "never"}

    def run(*arguments, config=None):
        if config is not None:
            (folder / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        for command in (["git", "init", "-q"], ["git", "add", "."]):
            subprocess.run(command, cwd=folder, env=environment, check=True)
        command = [sys.executable, "-m", "pre_commit", *arguments]
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    return run


def local(**changes):
    """A configuration with the hook of the manifest, which runs in the environment of the tests."""
    (hook,) = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))
    entry = hook["entry"].replace("bngrad ", f"{sys.executable} -m bngrad ")
    return {"repos": [{"repo": "local", "hooks": [hook | {"language": "unsupported", "entry": entry} | changes]}]}


def test_the_manifest_is_valid(pre_commit):
    assert pre_commit("validate-manifest", str(MANIFEST)) == (0, "")


def test_models_are_inspected_and_other_files_are_not(pre_commit):
    code, out = pre_commit("run", "--all-files", config=local())
    assert code == 1
    assert "bngrad: failed: models/hazard.onnx: bn: a running output is not a graph output" in out
    assert "bngrad: error: models/empty.onnx is empty; expected an ONNX model" in out
    assert "exit code: 2" in out
    assert "notes.txt" not in out


@pytest.mark.parametrize(
    ("files", "arguments", "code"),
    [
        (["models/good.onnx", "models/hazard.onnx"], ["--fail-on", "hazard"], 1),
        (["models/good.onnx", "models/hazard.onnx"], ["--fail-on", "none"], 0),
        pytest.param(["models/good.onnx"], ["--fail-on", "hazard"], 0, marks=pytest.mark.long),
        (["notes.txt"], ["--fail-on", "hazard"], 0),
    ],
    ids=["hazard", "none", "good", "no-model"],
)
def test_the_exit_code(files, arguments, code, pre_commit):
    got, out = pre_commit("run", "--files", *files, config=local(args=arguments))
    assert got == code, out
    assert ("Skipped" in out) == (files == ["notes.txt"])


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_hook_as_users_have_it(pre_commit):
    """pre-commit clones the repository, builds the package and installs it."""
    files = ["models/good.onnx", "models/hazard.onnx"]
    code, out = pre_commit("try-repo", str(ROOT), "bngrad-inspect", "--files", *files)
    assert code == 1, out
    assert "exit code: 1" in out
    failures = [line for line in out.splitlines() if line.startswith("bngrad: failed: ")]
    assert [line.split(": ")[2] for line in failures] == ["models/hazard.onnx"]
