"""Fails a test whose call takes more than 20 s of processor time; child processes count when they have ended.

A loaded machine must not fail a test, so it is not wall-clock time. `SLOW` lists the exceptions; tests marked
``long`` have no limit.
"""

from __future__ import annotations

import os

import pytest

LIMIT = 20

SLOW = {
    "faults/test_out_of_memory.py::test_out_of_memory": "each amount of memory is a process of its own",
    "gpu/test_run_gpu.py::test_the_checks_pass_on_the_cpu": "each part of a run is a process of its own",
    "gpu/test_run_gpu.py::test_the_measurements_run_on_the_cpu": "five processes import PyTorch",
    "from_torch/test_examples_pytorch.py::test_train": "a process of its own exports a PyTorch module",
    "from_torch/test_pytorch_guide.py::test_guide": "the examples of a page train networks, one after the other",
    "test_large_models.py::test_peak_memory": "each command is two processes of its own",
    "test_page_examples.py::test_examples_run": "the examples of a page train networks, one after the other",
}
"""Tests that may take longer, each with the reason: the id of the test without its parameters."""


def seconds():
    """The processor time of this process and of the processes that it waited for."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Fails a test that passed, but took too long."""
    begin = seconds()
    result = yield
    taken = seconds() - begin
    test = item.nodeid.partition("[")[0].removeprefix("tests/")
    if taken > LIMIT and test not in SLOW and not item.get_closest_marker("long"):
        pytest.fail(
            f"the test took {taken:.1f} s of processor time; expected at most {LIMIT} s, the marker `long`, "
            "or an entry with a reason in tests/processor_time.py",
            pytrace=False,
        )
    return result
