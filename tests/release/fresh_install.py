"""The distributions in new environments: the tests of the version matrix, and the README's examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

import trial
from environments import interpreter_of, make_environment
from project_metadata import ROOT
from rows import rows

if TYPE_CHECKING:
    from pathlib import Path


def wheel_problem(dist: Path, row_name: str, folder: Path) -> str:
    """Tries this machine's wheel with the dependencies of a row of the version matrix."""
    (row,) = (row for row in rows() if row.name == row_name)
    wheel = _wheel_of_this_machine(dist)
    requirements = [f"bngrad[models] @ {wheel.as_uri()}", "pytest>=8", *row.pins]
    python = make_environment(folder / "venv", requirements, trial.find_python(row.python))
    suites, remarks = trial.run_suites(python, folder / "junit.xml")
    if any(counts["failed"] for counts in suites.values()):
        return f"tests failed in {folder / 'venv'}: {'; '.join(remarks)}"
    return _readme_problem(python, folder / "readme")


def source_problem(dist: Path, folder: Path) -> str:
    """Builds and installs the source distribution, and tries the README's examples with it."""
    (sdist,) = dist.glob("*.tar.gz")
    make_environment(folder / "venv", [f"bngrad[models] @ {sdist.as_uri()}"])
    return _readme_problem(interpreter_of(folder / "venv"), folder / "readme")


def _wheel_of_this_machine(dist: Path) -> Path:
    tags = set(sys_tags())
    (wheel,) = (path for path in dist.glob("*.whl") if parse_wheel_filename(path.name)[3] & tags)
    return wheel


def _readme_problem(python: Path, folder: Path) -> str:
    """Runs the README's examples; what fails is the last line."""
    folder.mkdir(parents=True)
    done = trial.call(python, ROOT / "tests/page_examples.py", ROOT / "README.md", folder)
    return "" if done.returncode == 0 else f"README.md: {(done.stderr or done.stdout).strip().splitlines()[-1]}"
