"""Fixtures and options for all tests."""

from __future__ import annotations

import contextlib
import signal

import numpy as np
import pytest

from failed_inferences import expected_failures, no_failed_inference  # noqa: F401 - for every test
from processor_time import pytest_runtest_call  # noqa: F401 - the limit of a test's time
from waiting_threads import let_threads_sleep

# A shell ignores SIGINT in background jobs, and subprocesses of the tests would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
let_threads_sleep()


@pytest.fixture
def rng():
    return np.random.default_rng(20240229)


@pytest.fixture(scope="session")
def oracle():
    """ONNX Runtime's gradient builder and training kernels, in one process for all tests."""
    from bngrad.oracle.client import Oracle  # not at the top: some tests run where its packages are missing

    with Oracle(timeout=600) as running:
        yield running


@pytest.fixture
def shared_oracle(request, monkeypatch):
    """Has `validate` ask the oracle of all tests, instead of a process for each call."""
    monkeypatch.setattr(
        "bngrad.oracle.Oracle", lambda **_: contextlib.nullcontext(request.getfixturevalue("oracle"))
    )


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
