"""Keras and TensorFlow in an environment of their own, with bngrad from this tree."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from environments import cached_environment

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
REQUIREMENTS = ("tensorflow-cpu==2.21.0", "keras==3.15.1", "tf2onnx==1.17.0")


@pytest.fixture(scope="session")
def run_in_keras(request):
    """Runs a program; BNGRAD_KERAS_PYTHON names an interpreter that has the packages, else one is made."""
    python = os.environ.get("BNGRAD_KERAS_PYTHON")
    if python is None:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        requirements = [*REQUIREMENTS, *project["dependencies"], "scikit-learn"]
        python = cached_environment(request.config.cache.mkdir("keras"), requirements)

    def run(*arguments):
        environment = os.environ | {"PYTHONPATH": str(ROOT), "KERAS_BACKEND": "tensorflow", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [python, *arguments], capture_output=True, text=True, check=False, timeout=800, env=environment
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="session")
def results(run_in_keras, tmp_path_factory):
    """The results of the worker, by one process for all."""
    path = tmp_path_factory.mktemp("keras") / "results.json"
    run_in_keras(HERE / "worker.py", path)
    return json.loads(path.read_text(encoding="utf-8"))
