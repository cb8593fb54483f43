"""Ctrl-C while a command starts, imports, works or ends: exit code 130, and one empty line at most."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import onnx
import pytest

from test_stopped_while_writing import model

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")

PARTS = [0.3, 0.6, 0.9, *(pytest.param(part / 40, marks=pytest.mark.long) for part in range(2, 40) if part % 12)]
"""Of the time that the command takes."""

COMMAND = ["rewrite", "model.onnx", "-o", "out.onnx"]

PROGRAM = """
import os, signal, sys, threading
from bngrad.__main__ import main
timer = threading.Timer(float(sys.argv.pop(1)), os.kill, (os.getpid(), signal.SIGINT))
timer.daemon = True
timer.start()
main()
"""
"""The command, which interrupts itself: before it begins Python ends as it likes, and a loaded machine is late."""


def start(folder, seconds):
    command = [sys.executable, "-c", PROGRAM, str(seconds), *COMMAND]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def seconds(tmp_path_factory):
    """What the command takes here when nothing stops it; a first run would make files of bytecode."""
    folder = tmp_path_factory.mktemp("whole")
    onnx.save(model("new", 3), folder / "model.onnx")
    for _ in range(2):
        begin = time.monotonic()
        with start(folder, 3600) as process:
            assert process.wait() == 0
        found = time.monotonic() - begin
    return found


@pytest.mark.parametrize("part", PARTS)
def test_interrupted(part, seconds, tmp_path):
    onnx.save(model("new", 3), tmp_path / "model.onnx")
    with start(tmp_path, part * seconds) as process:
        output, errors = process.communicate()
    left = sorted(path.name for path in tmp_path.iterdir())
    if process.returncode == 0:  # it had done its work; Ctrl-C came too late
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
    del held  # what the callback raises, Python prints and passes over
    time.sleep(60)

bngrad.cli = sys.modules["bngrad.cli"] = types.SimpleNamespace(run=run)
main()
"""


def test_interrupted_where_nothing_can_catch_it():
    """As in importlib, which has such callbacks: the work ends all the same, and nothing is said."""
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


def test_interrupted_while_a_module_of_cpp_is_imported():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
