"""A seed for every test: modules draw their weights."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _seed():
    torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")
    torch.manual_seed(0)
