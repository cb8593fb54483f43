"""docs/guides/pytorch.md: its examples run in order, and its commands print what the page shows."""

from __future__ import annotations

import warnings

import pytest

from bngrad.errors import BngradWarning
from page_examples import ROOT, blocks, run_page

pytest.importorskip("torch", reason="needs PyTorch: make test-torch")
pytest.importorskip("sklearn", reason="needs scikit-learn, pip install bngrad[models]")
GUIDE = ROOT / "docs" / "guides" / "pytorch.md"


def test_guide(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporters' own
        warnings.simplefilter("error", BngradWarning)
        names = run_page(GUIDE, tmp_path)
    assert names["loss"] < 1
    training = [block.text for block in blocks(GUIDE) if block.language == "python"][1]
    assert len([line for line in training.splitlines() if line.strip()]) <= 10  # from a module to a trained one
