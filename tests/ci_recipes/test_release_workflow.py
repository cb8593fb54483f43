"""The workflow that publishes a release: valid, without secrets, its scripts run with stand-ins of programs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest
import yaml

from project_metadata import ROOT, project

FILE = ROOT / ".github" / "workflows" / "release.yml"
TEXT = FILE.read_text(encoding="utf-8")
JOBS = yaml.safe_load(TEXT)["jobs"]
STEPS = [(name, step) for name, job in JOBS.items() for step in job["steps"]]
TAG = f"v{project()['version']}"
CALLED = """\
#!/bin/sh
echo "$(basename "$0") $*" >> "$CALLS"
case "$(basename "$0") $*" in
  "make release-check") mkdir -p build/release/dist && touch build/release/dist/p.whl build/release/dist/p.tar.gz;;
  "make docs") mkdir -p build/site;;
  "npm pack"*) touch build/release/p.tgz;;
esac
"""


def test_it_is_valid():
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", FILE]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_only_the_jobs_that_publish_may_write():
    assert yaml.safe_load(TEXT)["permissions"] == {"contents": "read"}
    rights = {name: job.get("permissions") for name, job in JOBS.items()}
    token = {"id-token": "write"}
    assert rights == {
        "build": None,
        "pypi": token,
        "npm": token,
        "github": token | {"contents": "write", "attestations": "write"},
        "site": token | {"pages": "write"},
    }
    assert not re.search(r"secrets\.|password|api[-_]token", TEXT)
    checkout = JOBS["build"]["steps"][0]
    assert checkout["with"]["persist-credentials"] is False


def test_actions_are_pinned():
    for action in re.findall(r"uses: (.+)", TEXT):
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", action), action


def test_distributions_are_attested():
    publish = [step for name, step in STEPS if name == "pypi" and "pypi-publish" in step.get("uses", "")]
    assert [step["with"] for step in publish] == [{"packages-dir": "dist", "attestations": True}]
    (attested,) = (step["with"]["subject-path"] for _, step in STEPS if "attest-build" in step.get("uses", ""))
    assert attested.split() == ["dist/*", "*.tgz"]
    assert "--provenance" in next(step["run"] for name, step in STEPS if name == "npm" and "run" in step)


def test_expressions_are_never_part_of_a_script():
    assert not [step["name"] for _, step in STEPS if "${{" in step.get("run", "")]


@pytest.fixture
def tree(tmp_path):
    """The files of a checkout of a release that the scripts read, and its Python."""
    folder = tmp_path / "checkout"
    for name in ("tests/release", "tests/project_metadata.py", "docs/examples/step", "pyproject.toml", "Makefile"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, folder / name)
    section = f"## {project()['version']} (2026-01-31)\n\n- An addition.\n\n## 0.0.1 (2026-01-01)\n\n- Another.\n"
    (folder / "CHANGELOG.md").write_text(f"# Changelog\n\n{section}", encoding="utf-8")
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    return folder


@pytest.fixture
def runner(tmp_path):
    """Returns a function that runs the scripts of a job in a folder, and returns the programs that they called."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("make", "npm", "gh", "git"):
        (programs / name).write_text(CALLED, encoding="utf-8")
        (programs / name).chmod(0o755)

    def run(job, folder):
        calls = tmp_path / f"{job}.calls"
        calls.touch()
        environment = os.environ | {
            "CALLS": str(calls),
            "GITHUB_REF_NAME": TAG,
            "GITHUB_REPOSITORY": "o/p",
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        }
        for step in JOBS[job]["steps"]:
            if "run" in step:
                script = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
                subprocess.run(script, cwd=folder, env=environment, check=True)
        return calls.read_text(encoding="utf-8").splitlines()

    return run


def downloaded(tree, folder):
    """Copies what the job that builds uploads to a folder, as the actions of artifacts do."""
    (uploaded,) = (step["with"] for _, step in STEPS if "upload-artifact" in step.get("uses", ""))
    names = {step["with"]["name"] for _, step in STEPS if "download-artifact" in step.get("uses", "")}
    assert names == {uploaded["name"]}
    root = tree / "build" / "release"
    for pattern in uploaded["path"].split():
        paths = list(tree.glob(pattern.rstrip("/")))
        assert paths, pattern
        for path in paths:
            target = folder / path.relative_to(root)
            (shutil.copytree if path.is_dir() else shutil.copy)(path, target)


def test_the_scripts_build_and_publish(tree, runner, tmp_path):
    built = runner("build", tree)
    assert built == [
        f"git fetch --force origin refs/tags/{TAG}:refs/tags/{TAG}",
        "make release-check",
        "npm pack ./docs/examples/step --pack-destination build/release",
        "make docs",
    ]
    site = [step["with"]["path"] for _, step in STEPS if "upload-pages" in step.get("uses", "")]
    assert [(tree / path).is_dir() for path in site] == [True]
    assert (tree / "build/release/notes.md").read_text(encoding="utf-8") == "- An addition.\n"
    folder = tmp_path / "job"
    folder.mkdir()
    downloaded(tree, folder)
    assert runner("npm", folder) == ["npm publish ./p.tgz --provenance --access public"]
    options = f"--repo o/p --verify-tag --title {TAG} --notes-file notes.md"
    assert runner("github", folder) == [f"gh release create {TAG} {options} dist/p.tar.gz dist/p.whl ./p.tgz"]


def test_the_targets_exist():
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    called = [target for _, step in STEPS for target in re.findall(r"^make ([\w-]+)$", step.get("run", ""))]
    assert called == ["release-check", "docs"]
    assert set(called) <= set(targets)


def test_there_are_no_notes_without_a_section(tree):
    (tree / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n- An addition.\n", encoding="utf-8")
    notes = [sys.executable, tree / "tests/release/release_notes.py"]
    done = subprocess.run(notes, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "CHANGELOG.md begins with '## Unreleased'" in done.stderr
