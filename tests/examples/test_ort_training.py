"""docs/examples/ort_training: with this package the scripts print what they print with 1.19.2."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from digits_training import EXAMPLES
from ort_training.old_package import old_python

NAMES = ("mlp", "batch_norm_cnn", "custom_loss")

LIMIT = 2e-5
"""Of float32 sums in another order, relative to the largest number of a kind, after up to 60 steps."""

IN_OLD = """
import runpy, sys, types
import onnx
onnx.IR_VERSION = 10  # the newest that 1.19.2 reads
sys.modules["onnxruntime.training.optim"] = types.ModuleType("optim")  # imports torch, which nothing here needs
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    """The interpreter of 1.19.2 and the path for it."""
    return old_python(tmp_path_factory.mktemp("path"))


def printed(*command, **variables):
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, check=False, env=os.environ | variables
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "name", [name if name == "batch_norm_cnn" else pytest.param(name, marks=pytest.mark.long) for name in NAMES]
)
def test_script_is_the_same_with_both_packages(name, old):
    script = EXAMPLES / "ort_training" / f"{name}.py"
    python, path = old
    want = printed(python, "-c", IN_OLD, script, "onnxruntime.training", PYTHONPATH=path)
    got = printed(sys.executable, script, "bngrad.ort_training", PYTHONPATH=os.pathsep.join(sys.path))
    require_close(got, want)
    assert want["losses"][-1] < want["losses"][0] / 2


def require_close(got, want):
    if isinstance(want, dict):
        assert got.keys() == want.keys()
        for key in want:
            require_close(got[key], want[key])
    elif np.asarray(want).dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=0, atol=LIMIT * np.max(np.abs(want)))
    else:
        assert got == want
