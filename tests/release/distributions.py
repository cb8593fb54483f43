"""The source distribution and the wheels, built from a clean clone."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING

from environments import interpreter_of, run
from project_metadata import ROOT

if TYPE_CHECKING:
    from pathlib import Path

SHIPPED = ("bngrad", "ops", "LICENSE", "README.md", "pyproject.toml")
"""Files and folders of the repository that a source distribution holds whole."""


def build_problem(clone: Path, dist: Path) -> str:
    """Clones the repository, and builds everything into `dist`, twice; `ops.wheels` checks the wheels."""
    run("git", "clone", "--quiet", "--no-hardlinks", ROOT, clone)
    run("make", "wheels", f"PYTHON={sys.executable}", f"WHEELS=--twice --output {dist}", cwd=clone)
    tools = interpreter_of(clone / "build/wheels/tools")
    run(tools, "-m", "twine", "check", "--strict", *sorted(dist.iterdir()))
    return ""


def content_problem(clone: Path, dist: Path) -> str:
    """Checks that the source distribution holds every file that it should."""
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    listed = subprocess.run(
        ["git", "ls-files", *SHIPPED], cwd=clone, capture_output=True, text=True, check=True
    ).stdout
    missing = sorted(set(listed.splitlines()) - names)
    return f"{sdist.name} lacks {', '.join(missing[:3])}" if missing else ""
