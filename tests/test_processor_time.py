"""Checks the limit of a test's processor time: on the test itself, on its processes, and its two exceptions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import processor_time

TESTS = Path(__file__).parent

PLUGIN = """
import processor_time
from processor_time import pytest_runtest_call

processor_time.LIMIT = 0.1
processor_time.SLOW["test_some.py::test_listed"] = "it is an example"
"""

EXAMPLES = """
import subprocess, sys, time
import pytest

BUSY = "import time\\nwhile time.process_time() < 0.2: pass"

def busy():
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass

def test_fast(): pass
def test_waiting(): time.sleep(0.5)
def test_slow(): busy()
def test_process(): subprocess.run([sys.executable, "-c", BUSY], check=True)
@pytest.mark.parametrize("n", [1])
def test_listed(n): busy()
@pytest.mark.long
def test_long(): busy()
def test_wrong():
    busy()
    assert not "its own failure"
"""


def test_slow_tests_fail(tmp_path):
    (tmp_path / "conftest.py").write_text(PLUGIN)
    (tmp_path / "test_some.py").write_text(EXAMPLES)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {TESTS}\nmarkers = long\n")
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-rf", str(tmp_path)]
    environment = os.environ | {"COLUMNS": "300"}  # the messages are not cut
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    failed = dict(re.findall(r"^FAILED test_some\.py::(\w+) - (.*)$", done.stdout, re.MULTILINE))
    assert set(failed) == {"test_slow", "test_process", "test_wrong"}, done.stdout
    assert all("s of processor time" in failed[name] for name in ("test_slow", "test_process"))
    assert "its own failure" in failed["test_wrong"]


def test_the_limit_holds_here(request):
    hooks = request.config.pluginmanager.hook.pytest_runtest_call.get_hookimpls()
    assert processor_time.pytest_runtest_call in [hook.function for hook in hooks]


def test_listed_tests_exist_and_have_a_reason():
    for test, reason in processor_time.SLOW.items():
        file, _, name = test.partition("::")
        assert f"def {name}(" in (TESTS / file).read_text(encoding="utf-8")
        assert reason
