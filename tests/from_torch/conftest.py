"""A seed for every test, as modules draw their weights, and PyTorch's own defaults."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _seed():
    torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")
    torch.manual_seed(0)
    # The first use of torch._dynamo, as by an exporter in another test, turns them off.
    torch.distributions.Distribution.set_default_validate_args(True)
