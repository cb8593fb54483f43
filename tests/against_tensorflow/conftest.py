"""TensorFlow in an environment of its own, for its packages and ours need not agree."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from environments import cached_environment

HERE = pathlib.Path(__file__).parent
REQUIREMENTS = ("tensorflow-cpu==2.21.0", "tf2onnx==1.17.0")

# What the tests of the import pass share.
sys.path.append(str(HERE.parent / "passes"))


@pytest.fixture(scope="session")
def tensorflow(request):
    """Runs the worker; BNGRAD_TENSORFLOW_PYTHON names an interpreter that has TensorFlow, else one is made."""
    python = os.environ.get("BNGRAD_TENSORFLOW_PYTHON") or cached_environment(
        request.config.cache.mkdir("tensorflow"), REQUIREMENTS
    )

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
