"""One binary in every ONNX Runtime from 1.17 on: test_ort_op.py in environments of their own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from environments import make_environment, run

# Oldest that has the API version asked for; the training build; one between; the first to lend shapes; the newest.
RELEASES = {
    "1.17.3": ["onnxruntime==1.17.3", "numpy<2", "onnx<1.17"],
    "1.19.2-training": ["onnxruntime-training-cpu==1.19.2"],
    "1.23.2": ["onnxruntime==1.23.2"],
    "1.24": ["onnxruntime==1.24.*"],
    "newest": ["onnxruntime"],
}


@pytest.mark.long
@pytest.mark.parametrize("requirements", RELEASES.values(), ids=RELEASES)
def test_release(requirements, tmp_path):
    python = make_environment(tmp_path / "env", ["numpy", "onnx", "pytest", *requirements])
    # A copy, away from this project's conftest.py and settings.
    test = shutil.copy(Path(__file__).with_name("test_ort_op.py"), tmp_path)
    run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, test, cwd=tmp_path)
