"""One binary in every ONNX Runtime from 1.17 on: test_ort_op.py in environments of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bngrad import native

# Oldest that has the API version asked for; the training build; one between; the newest there is.
RELEASES = {
    "1.17.3": ["onnxruntime==1.17.3", "numpy<2", "onnx<1.17"],
    "1.19.2-training": ["onnxruntime-training-cpu==1.19.2"],
    "1.23.2": ["onnxruntime==1.23.2"],
    "newest": ["onnxruntime"],
}


@pytest.mark.long
@pytest.mark.parametrize("requirements", RELEASES.values(), ids=RELEASES)
def test_release(requirements, tmp_path):
    python = tmp_path / "env" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    run(sys.executable, "-m", "venv", tmp_path / "env")
    run(python, "-m", "pip", "install", "--quiet", "numpy", "onnx", "pytest", *requirements)
    # A copy, away from this project's conftest.py and settings.
    test = shutil.copy(Path(__file__).with_name("test_ort_op.py"), tmp_path)
    run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, test, cwd=tmp_path)


def run(*command, cwd=None):
    environment = os.environ | {"BNGRAD_LIBRARY": str(native.library_path().resolve())}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, check=False, env=environment, cwd=cwd
    )
    assert done.returncode == 0, done.stdout + done.stderr
