from __future__ import annotations

import pytest

from bngrad.oracle import Oracle


@pytest.fixture(scope="session")
def oracle():
    """ONNX Runtime's own gradient builder and training kernels."""
    with Oracle(timeout=120) as started:
        yield started
