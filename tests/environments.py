"""Interpreters of their own, with other releases of what this project depends on."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from bngrad.runtime import native_library

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def make_environment(folder: Path, requirements: Iterable[str], base: str | Path = sys.executable) -> Path:
    """Makes a virtual environment of a Python and installs requirements into it; returns its interpreter."""
    run(base, "-m", "venv", "--clear", folder)
    python = interpreter_of(folder)
    run(python, "-m", "pip", "install", "--quiet", "--no-compile", *requirements)
    return python


def interpreter_of(folder: Path) -> Path:
    """The interpreter of a virtual environment."""
    return folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"


def run(*command, cwd=None) -> str:
    """Runs a command that has to succeed, with the library under test; returns what it prints."""
    environment = os.environ | {"BNGRAD_LIBRARY": str(native_library.library_path().resolve())}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, check=False, env=environment, cwd=cwd
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
