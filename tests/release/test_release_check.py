"""The check runs every step, and one that fails or cannot run fails the release."""

from __future__ import annotations

import io
import subprocess
import tarfile

import pytest

import distributions
import release_check


def raising(error):
    def check():
        raise error

    return check


@pytest.mark.parametrize(
    ("problem", "line"),
    [
        (lambda: "no tag", "second: no tag ("),
        (raising(AssertionError("output\nthe last line")), "second: the last line ("),
        (raising(OSError("no such file")), "second: no such file ("),
        (raising(subprocess.CalledProcessError(1, ["git"])), "second: Command '['git']' returned non-zero"),
        (raising(ValueError()), "second: ValueError ("),
    ],
)
def test_a_step_that_fails(problem, line, capsys):
    ran = []
    checks = {"first": lambda: "", "second": problem, "third": lambda: ran.append("third") or ""}
    assert release_check.failures(checks) == ["second"]
    assert ran == ["third"]
    lines = capsys.readouterr().out.splitlines()
    assert [lines[0][:9], lines[-1]] == ["first: ok", "not ready: second"]
    assert lines[1].startswith(line)


def test_nothing_fails(capsys):
    assert release_check.failures({"first": lambda: ""}) == []
    assert capsys.readouterr().out.splitlines()[-1] == "ready to release"


def test_a_candidate_needs_no_tag_and_no_remote(tmp_path):
    steps = release_check.steps(tmp_path, candidate=True)
    names = ("version", "changelog", "citation", "npm package", "recipe", "tag", "remote")
    assert [steps[name]() for name in names] == [""] * len(names)


@pytest.fixture
def clone(tmp_path):
    """A repository with a package of two files."""
    folder = tmp_path / "clone"
    (folder / "bngrad").mkdir(parents=True)
    (folder / "README.md").write_text("readme\n", encoding="utf-8")
    (folder / "bngrad/__init__.py").write_text("", encoding="utf-8")
    for arguments in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *arguments], cwd=folder, check=True)
    return folder


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["README.md", "bngrad/__init__.py", "PKG-INFO"], ""),
        (["README.md"], "p-1.tar.gz lacks bngrad/__init__.py"),
        ([], "p-1.tar.gz lacks README.md, bngrad/__init__.py"),
    ],
)
def test_what_a_source_distribution_holds(names, problem, clone, tmp_path):
    dist = tmp_path / "dist"
    dist.mkdir()
    with tarfile.open(dist / "p-1.tar.gz", "w:gz") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(f"p-1/{name}"), io.BytesIO())
    assert distributions.content_problem(clone, dist) == problem
