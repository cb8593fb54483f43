"""Kills or interrupts a command at lines of the code that writes: the output is the old or the new model."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from bngrad import cli

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals and fork")

CHANNELS = 100  # 400 bytes of weights are large enough to become external data
PARAMETERS = f"float[{CHANNELS}] b, float[{CHANNELS}] m, float[{CHANNELS}] v"
LEFT_BY_A_KILL = re.compile(r"\.out\.onnx\.[0-9a-f]{8}\.tmp|out\.onnx(\.1)?\.data")


def model(name, scale):
    text = f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    {name} (float[2,{CHANNELS}] dy, float[2,{CHANNELS}] x, {PARAMETERS})
        => (float[2,{CHANNELS}] dx, float[{CHANNELS}] ds, float[{CHANNELS}] db) {{
        y, m2, v2, sm, si = com.microsoft.BatchNormInternal<epsilon = 0.001, momentum = 0.9>(x, s, b, m, v)
        dx, ds, db = com.microsoft.BatchNormalizationGrad<epsilon = 0.001>(dy, x, s, sm, si)
    }}"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.full(CHANNELS, scale, np.float32), "s"))
    return proto


@pytest.fixture
def arguments(request, tmp_path):
    """The arguments of a command whose output file already exists."""
    for folder in ("source", "old"):
        (tmp_path / folder).mkdir()
    onnx.save(model("old", 2), tmp_path / "source" / "old.onnx")
    onnx.save(model("new", 3), tmp_path / "source" / "new.onnx")
    option = ["--external-data", "copied"] if request.param == "copied" else []
    first = ["rewrite", str(tmp_path / "source" / "old.onnx"), "-o", str(tmp_path / "old" / "out.onnx"), *option]
    assert cli.run(first) == 0
    return ["rewrite", "../source/new.onnx", "-o", "out.onnx", *option]


def steps(folder, number, stride, arguments):
    """Reports on a command that a signal stops at each line of some, from a random one of the first on."""
    script, first = Path(__file__).with_name("writing_steps.py"), random.randrange(stride)  # noqa: S311
    print(f"signal {number} at line {first} and every {stride}th from there")  # noqa: T201 - to repeat a failure
    command = [sys.executable, script, folder, str(int(number)), str(first), str(stride), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


OLD, NEW = ["old", 2.0], ["new", 3.0]
STRIDES = {"some-lines": 47, "every-line": 1}


def selected(name, values, *combinations):
    """Parametrizes a test by where the weights are and by values, of which all but some combinations are long."""
    cases = [(where, value) for where in ("inside", "copied") for value in values]
    marks = [() if case in combinations else pytest.mark.long for case in cases]
    cases = [pytest.param(*case, marks=mark) for case, mark in zip(cases, marks, strict=True)]
    return pytest.mark.parametrize(("arguments", name), cases, indirect=["arguments"])


@selected("lines", STRIDES, ("inside", "some-lines"), ("copied", "some-lines"))
def test_killed(arguments, lines, tmp_path):
    stride = STRIDES[lines]
    before = sorted(path.name for path in (tmp_path / "old").iterdir())
    reports = steps(tmp_path, signal.SIGKILL, stride, arguments)
    assert len(reports) * stride > 40
    assert [report["out"] for report in reports if report["out"] not in (OLD, NEW)] == []
    assert reports[0]["out"] == OLD
    assert stride > 1 or reports[-1]["out"] == NEW
    for report in reports:
        assert report["code"] == -signal.SIGKILL
        assert all(LEFT_BY_A_KILL.fullmatch(name) for name in set(report["files"]) - set(before))
        code, errors, after = report["next"]
        assert (code, after["out"]) == (0, NEW)
        assert all(line.startswith("bngrad: note: out.onnx.") for line in errors.splitlines())


@selected("lines", STRIDES, ("copied", "some-lines"))
def test_interrupted(arguments, lines, tmp_path):
    stride = STRIDES[lines]
    before = sorted(path.name for path in (tmp_path / "old").iterdir())
    reports = steps(tmp_path, signal.SIGINT, stride, arguments)
    assert len(reports) * stride > 40
    for report in reports:
        assert (report["code"], report["errors"].strip()) == (130, ""), report
        assert report["out"] in (OLD, NEW), report
        # The data of the old model are never removed: another model may share them.
        assert report["files"] == before if report["out"] == OLD else set(before) <= set(report["files"]), report
        code, errors, after = report["next"]
        assert (code, after["out"]) == (0, NEW)
        assert errors == "" or errors.startswith("bngrad: note: out.onnx.data ")
        assert set(after["files"]) - set(before) <= {"out.onnx.1.data"}


# A limit on file sizes kills a process in the middle of a write, unless it ignores the signal, as Python does by
# default.
KILLED_AT_A_BYTE = """
import resource, signal, sys
import bngrad.io.files, bngrad.passes.pipeline
from bngrad.cli import run
from bngrad.opset.ort_dialect import stock_ops
stock_ops()
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
sys.exit(run(sys.argv[2:]))
"""


@selected("size", [10, 399, 1000], ("inside", 10), ("copied", 399))
def test_killed_in_the_middle_of_a_write(size, arguments, tmp_path):
    before = {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir()}
    command = [sys.executable, "-c", KILLED_AT_A_BYTE, str(size), *arguments]
    done = subprocess.run(command, cwd=tmp_path / "old", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGXFSZ, "", "")
    after = {path.name: path.read_bytes() for path in (tmp_path / "old").iterdir()}
    assert before.items() <= after.items()
    left = after.keys() - before.keys()
    assert left
    assert all(LEFT_BY_A_KILL.fullmatch(name) for name in left)
