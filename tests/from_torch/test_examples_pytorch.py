"""docs/examples/pytorch/train.py runs, and trains."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from digits_training import EXAMPLES

pytest.importorskip("torch", reason="needs PyTorch: make test-torch")
pytest.importorskip("sklearn", reason="needs scikit-learn, pip install bngrad[models]")


def test_train():
    command = [sys.executable, EXAMPLES / "pytorch" / "train.py", "--epochs", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    first, last, accuracy = map(float, re.findall(r"\d\.\d+", done.stdout))
    assert first > 2
    assert last < 0.7 * first
    assert accuracy > 0.6
