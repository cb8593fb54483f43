"""Tests Ctrl-C during the start, imports, work and exit of a command: exit code 130, at most one empty line."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import onnx
import pytest

from test_stopped_while_writing import model

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")

FRACTIONS = [0.3, 0.9, *(pytest.param(i / 40, marks=pytest.mark.long) for i in range(2, 40) if i not in (12, 36))]
"""Fractions of the command's run time at which it is interrupted."""

COMMAND = ["rewrite", "model.onnx", "-o", "out.onnx"]

PROGRAM = """
import os, signal, sys, threading
from bngrad.__main__ import main
timer = threading.Timer(float(sys.argv.pop(1)), os.kill, (os.getpid(), signal.SIGINT))
timer.daemon = True
timer.start()
main()
"""
"""Runs the command and interrupts it from a timer, which starts after Python and does not depend on the load."""


def start(folder, seconds):
    command = [sys.executable, "-c", PROGRAM, str(seconds), *COMMAND]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def seconds(tmp_path_factory):
    """The run time of the command without interruption, measured after a first run has compiled the bytecode."""
    folder = tmp_path_factory.mktemp("complete")
    onnx.save(model("new", 3), folder / "model.onnx")
    for _ in range(2):
        begin = time.monotonic()
        with start(folder, 3600) as process:
            assert process.wait() == 0
        duration = time.monotonic() - begin
    return duration


@pytest.mark.parametrize("fraction", FRACTIONS)
def test_interrupted(fraction, seconds, tmp_path):
    onnx.save(model("new", 3), tmp_path / "model.onnx")
    with start(tmp_path, fraction * seconds) as process:
        output, errors = process.communicate()
    left = sorted(path.name for path in tmp_path.iterdir())
    if process.returncode == 0:  # the command had already finished
        assert (left, errors) == (["model.onnx", "out.onnx"], "")
        return
    assert (process.returncode, errors.strip()) == (130, "")
    assert left in (["model.onnx"], ["model.onnx", "out.onnx"])
    assert output == "" or left[1:]


UNCATCHABLE = """
import os, signal, sys, time, types, weakref
import bngrad
from bngrad.__main__ import main

def run(arguments):
    class Held: pass
    held = Held()
    watch = weakref.ref(held, lambda _: os.kill(os.getpid(), signal.SIGINT))
    del held  # Python prints and ignores exceptions in the callback
    time.sleep(60)

deferred_imports = types.SimpleNamespace(install=lambda: None)
bngrad.cli = sys.modules["bngrad.cli"] = types.SimpleNamespace(run=run, deferred_imports=deferred_imports)
main()
"""


def test_interrupted_in_a_callback_that_ignores_exceptions():
    """importlib has such callbacks; the command must exit without output."""
    done = subprocess.run(
        [sys.executable, "-c", UNCATCHABLE], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


INTERRUPTED_IMPORT = """
import sys, types
from bngrad import cli
from bngrad.__main__ import main

def interrupted(*_, **__):
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt as error:
        raise ImportError("initialization failed") from error

cli.cli.main = interrupted
main()
"""


def test_interrupted_while_an_extension_module_is_imported():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
