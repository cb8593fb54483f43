"""The examples of docs/guides/tensorflow.md run, in order."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_guide(run_in_keras, tmp_path):
    run_in_keras(ROOT / "tests/page_examples.py", ROOT / "docs/guides/tensorflow.md", tmp_path)
    assert (tmp_path / "train.onnx").exists()
