"""docs/guides/pytorch.md: its Python runs in order in one process, and its commands print what the page shows."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import warnings

import pytest

from bngrad.errors import BngradWarning
from test_docs import DOCS, blocks

pytest.importorskip("torch", reason="needs PyTorch: make test-torch")
pytest.importorskip("sklearn", reason="needs scikit-learn, pip install bngrad[models]")


def run(line):
    command = [sys.executable, "-m", *shlex.split(line, comments=True)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return {*done.stdout.splitlines(), *done.stderr.splitlines()}


def test_guide(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "guide"}
    lines = []
    for language, text in blocks(DOCS / "guides" / "pytorch.md"):
        if language == "python":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the exporters' own
                warnings.simplefilter("error", BngradWarning)
                exec(text, names)  # noqa: S102 - the guide's own
            lines.append([line for line in text.splitlines() if line.strip()])
        for shown in re.split(r"^\$ (?=bngrad)", text, flags=re.MULTILINE)[1:]:
            line, *expected = shown.splitlines()
            assert {one for one in expected if "..." not in one} <= run(line)
    assert len(lines[1]) <= 10  # from a module to a trained one
    assert names["loss"] < 1
