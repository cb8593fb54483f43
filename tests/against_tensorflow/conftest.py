"""TensorFlow in an environment of its own, for its packages and ours need not agree."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import venv

import pytest
from filelock import FileLock

HERE = pathlib.Path(__file__).parent
REQUIREMENTS = ("tensorflow-cpu==2.21.0", "tf2onnx==1.17.0")

# What the tests of the import pass share.
sys.path.append(str(HERE.parent / "passes"))


@pytest.fixture(scope="session")
def tensorflow(request):
    """Runs the worker; BNGRAD_TENSORFLOW_PYTHON names an interpreter that has TensorFlow, else one is made."""
    python = os.environ.get("BNGRAD_TENSORFLOW_PYTHON") or _installed(request.config.cache.mkdir("tensorflow"))

    def work(*arguments):
        done = subprocess.run(
            [python, "-I", HERE / "worker.py", *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        return done

    return work


def _installed(directory):
    """The interpreter of an environment with TensorFlow; the test is skipped where there can be none."""
    # Tests may run in several processes.
    with FileLock(directory.with_suffix(".lock")):
        return _install(directory)


def _install(directory):
    python = directory / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    ready = directory / "ready"
    if not ready.exists() or ready.read_text() != " ".join(REQUIREMENTS):
        venv.create(directory, with_pip=True, clear=True)
        installed = subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *REQUIREMENTS],
            capture_output=True,
            text=True,
            check=False,
            timeout=1200,
        )
        if installed.returncode:
            reason = (installed.stderr.strip() or "no reason given").splitlines()[-1]
            pytest.skip(f"{' '.join(REQUIREMENTS)} cannot be installed: {reason}")
        ready.write_text(" ".join(REQUIREMENTS))
    return python
