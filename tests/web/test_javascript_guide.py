"""The guide's first example runs as it is written."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import bngrad
from bngrad.training.step_files import read_state
from digits_training import EXAMPLES

GUIDE = EXAMPLES.parent / "guides" / "javascript.md"


def test_the_first_example(node, packed, tmp_path):
    text = GUIDE.read_text(encoding="utf-8")
    (console, script) = re.findall(r"^```(?:console|js)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[:2]
    bngrad_line, pack, install = (shlex.split(line[2:]) for line in console.splitlines())
    (tmp_path / "models").symlink_to(EXAMPLES.parents[1] / "models")
    subprocess.run([sys.executable, "-m", *bngrad_line], cwd=tmp_path, check=True)
    assert pack == ["npm", "pack", "./docs/examples/step"]
    assert install[-2:] == ["./bngrad-*.tgz", "onnxruntime-node"]
    (tmp_path / "node_modules").symlink_to(packed / "node_modules")
    (tmp_path / "train.mjs").write_text(script, encoding="utf-8")
    losses = [float(line) for line in node(tmp_path / "train.mjs", cwd=tmp_path).splitlines()]
    assert losses[-1] < losses[0] / 4
    info = bngrad.read_training_step(tmp_path / "step.onnx").info
    assert read_state(tmp_path / "trained.safetensors", info)[0]["step"] == len(losses) == 50
