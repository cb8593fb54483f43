"""One oracle for all gradient cases of a module."""

from __future__ import annotations

import pytest

from bngrad.oracle import Oracle


@pytest.fixture(scope="module")
def oracle():
    with Oracle() as running:
        yield running
