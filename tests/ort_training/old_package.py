"""Runs a script with onnxruntime.training 1.19.2, in the oracle's environment."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bngrad.oracle import ensure

SHARED = ("onnx", "google", "ml_dtypes", "typing_extensions", "flatbuffers", "packaging")
"""Packages that onnxruntime.training imports and the oracle's environment does not have."""


def old_python(folder):
    """Returns the oracle's interpreter, and a path for it with the packages that it lacks."""
    environment = ensure()
    if not environment.python_version.startswith(f"{sys.version_info[0]}.{sys.version_info[1]}."):
        pytest.skip(f"the oracle's Python {environment.python_version} cannot import this one's onnx")
    for name in SHARED:
        spec = importlib.util.find_spec(name)
        source = Path(spec.submodule_search_locations[0] if spec.submodule_search_locations else spec.origin)
        (folder / source.name).symlink_to(source)
    return environment.python, str(folder)


def run(python, path, script, *arguments):
    """Runs a script of this folder, which must succeed."""
    done = subprocess.run(
        [str(python), str(Path(__file__).with_name(script)), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr[-2000:]
