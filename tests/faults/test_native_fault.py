"""Tests crashes in native code: one line and exit code 2, and the location with ``--debug``."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")

PROGRAM = """
import ctypes, os, sys
from bngrad import cli
from bngrad.__main__ import main

def fault(arguments):
    {fault}

cli.run = fault
main()
"""
FAULTS = {"SIGABRT": "os.abort()", "SIGSEGV": "ctypes.string_at(0)"}


def run(fault, *arguments, **environment):
    command = [sys.executable, "-c", PROGRAM.format(fault=FAULTS[fault]), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)


@pytest.mark.parametrize("fault", FAULTS)
def test_one_line(fault):
    done = run(fault, "inspect", "a model\n.onnx")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "bngrad: error: 'bngrad inspect a model .onnx' crashed in native code, often because of a malformed model "
        "or lack of memory; rerun with --debug for a traceback, and report it if the model is valid "
        f"({fault})\n"
    )


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    ("arguments", "environment"), [(["--debug"], {}), ([], {"PYTHONFAULTHANDLER": "1"})], ids=["option", "python"]
)
def test_location_of_the_crash(fault, arguments, environment):
    done = run(fault, "inspect", "model.onnx", *arguments, **environment)
    assert done.returncode < 0
    assert "Fatal Python error" in done.stderr
    assert "in fault" in done.stderr


@pytest.mark.parametrize("library", ["", "no-such-library"])
def test_without_the_library(library, tmp_path):
    """Without the library there is no crash handler: the process ends with the signal."""
    path = tmp_path / "libbngrad.so"
    path.write_text(library)
    done = run("SIGABRT", "inspect", "model.onnx", BNGRAD_LIBRARY=str(path))
    assert done.returncode < 0
    assert done.stderr == ""
