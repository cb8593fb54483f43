"""Fixtures and options for all tests."""

from __future__ import annotations

import signal

import numpy as np
import pytest

# A shell ignores SIGINT in background jobs, and subprocesses of the tests would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def rng():
    return np.random.default_rng(20240229)


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="update tests/golden for review")


@pytest.fixture
def golden(request):
    """A function that compares a text with a file in tests/golden."""

    def compare(name, text):
        path = request.config.rootpath / "tests" / "golden" / name
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
        assert path.read_text(encoding="utf-8") == text, f"run with --update-golden and review {name}"

    return compare
