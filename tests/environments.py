"""Virtual environments with other releases of the dependencies."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from typing import TYPE_CHECKING

import pytest
from filelock import FileLock

from bngrad.runtime import native_library

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def make_environment(folder: Path, requirements: Iterable[str], base: str | Path = sys.executable) -> Path:
    """Creates a virtual environment, installs requirements into it, and returns its interpreter."""
    run(base, "-m", "venv", "--clear", folder)
    python = interpreter_of(folder)
    run(python, "-m", "pip", "install", "--quiet", "--no-compile", *requirements)
    return python


def cached_environment(folder: Path, requirements: Iterable[str]) -> Path:
    """Returns the interpreter of an environment that later runs find again; else skips the test."""
    listed = " ".join(requirements)
    # Tests may run in several processes.
    with FileLock(folder.with_suffix(".lock")):
        ready = folder / "ready"
        if not ready.exists() or ready.read_text(encoding="utf-8") != listed:
            venv.create(folder, with_pip=True, clear=True)
            command = [interpreter_of(folder), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            done = subprocess.run(
                [*command, *listed.split(" ")], capture_output=True, text=True, check=False, timeout=1200
            )
            if done.returncode:
                reason = (done.stderr.strip() or "no reason given").splitlines()[-1]
                pytest.skip(f"{listed} cannot be installed: {reason}")
            ready.write_text(listed, encoding="utf-8")
    return interpreter_of(folder)


def interpreter_of(folder: Path) -> Path:
    """Returns the interpreter of a virtual environment."""
    return folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"


def run(*command, cwd=None) -> str:
    """Runs a command, which must succeed, with the library under test, and returns its output."""
    environment = os.environ | {"BNGRAD_LIBRARY": str(native_library.library_path().resolve())}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, check=False, env=environment, cwd=cwd
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
