"""models/whole_life.py: a folded file becomes a quantized model that runs in Node."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from digits_training import EXAMPLES

PROGRAM = EXAMPLES.parents[1] / "models" / "whole_life.py"


@pytest.mark.long
@pytest.mark.usefixtures("node")
def test_the_digits(tmp_path):
    done = subprocess.run(
        [sys.executable, PROGRAM, "resnet20", "-o", tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^\| ([^|]+) \| ([\d.]+)% \| ([\d,]*) ?\|$", done.stdout, re.MULTILINE)
    accuracies = [float(accuracy) for _, accuracy, _ in rows]
    folded, restored, federated, estimated, after, quantized, in_node = accuracies
    assert 80 < folded == restored < 97 < federated
    assert estimated > 97
    assert min(after, quantized) > 97
    assert abs(in_node - quantized) < 0.6  # another release of ONNX Runtime: ties
    sizes = [int(size.replace(",", "")) for *_, size in rows[:-1]]
    assert sizes[-1] < sizes[0] / 2
