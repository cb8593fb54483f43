"""The CUDA ops in real sessions without a card.

A library whose CUDA ops are those of the CPU's provider takes an emulation for NVIDIA's driver, so that the tests
of the ops in test_ort_op.py are also tests of their CUDA form.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from test_programs import only_linux

pytestmark = only_linux

OPS = Path(__file__).with_name("test_ort_op.py")
RANKS = Path(__file__).with_name("test_ort_synchronized.py")
NAMES = "test_layouts and float or test_types or left_out or empty or no_channels or known or adam or synchronized"
SAMPLE = f"({NAMES}) and not double"


@pytest.fixture
def library(build):
    """The library, in the environment of a process."""
    path = build / "tests" / "libbngrad_cuda_on_cpu.so"
    if not path.exists():
        pytest.skip("this system has no contexts, in which the kernels run")
    return os.environ | {"BNGRAD_LIBRARY": str(path)}


def run_python(environment, *arguments):
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=OPS.parent,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "chosen", [SAMPLE, pytest.param("not misaligned and not odd_offsets", marks=pytest.mark.long)]
)
def test_ops(library, chosen):
    """Every type, layout and mode against float64; outputs left out, empty batches, and what is refused."""
    options = ("-q", "-n0", "-p", "no:cacheprovider", "-k", chosen)
    assert "passed" in run_python(library, "-m", "pytest", *options, OPS)


@pytest.mark.long
def test_ops_of_several_ranks(library):
    """Moments and sums of each rank by kernels, and what the CPU's collectives make of them."""
    options = ("-q", "-n0", "-p", "no:cacheprovider", "-k", "ranks_compute")
    assert "passed" in run_python(library, "-m", "pytest", *options, RANKS)


def run_script(library, body):
    """The JSON that a script prints, with a session of one node and its inputs."""
    script = """
import json, os, threading
import numpy as np
from test_ort_op import *

def session_and_feeds(op, *shapes):
    feeds = [make_feeds(op, shape, [0, 2]) for shape in shapes]
    session = make_session(op.model(feeds[0], dims="free"), threads=2)
    for feed in feeds:
        del feed["axes"]
    return session, feeds

def bits(outputs):
    return [output.tobytes() for output in outputs]
"""
    return json.loads(run_python(library, "-c", script + body))


def test_shapes_change_from_run_to_run(library):
    """Scratch memory grows, and what is in it from other runs changes nothing."""
    body = """
shapes = [[2, 3, 5], [40, 3, 5], [1, 90, 5], [0, 3, 5], [300, 7, 5]]
session, feeds = session_and_feeds(grad_op(), *shapes)
alone = [bits(session_and_feeds(grad_op(), shape)[0].run(None, feed)) for shape, feed in zip(shapes, feeds)]
print(json.dumps([bits(session.run(None, feed)) == other for feed, other in [*zip(feeds, alone)] * 2]))
"""
    assert run_script(library, body) == [True] * 10


def test_concurrent_runs_of_a_session(library):
    body = """
session, feeds = session_and_feeds(grad_op(), *([n, 70, 9] for n in (3, 20, 50, 9)))
expected = [bits(session.run(None, feed)) for feed in feeds]
same = []
def repeat(i):
    same.extend(bits(session.run(None, feeds[i])) == expected[i] for _ in range(12))
threads = [threading.Thread(target=repeat, args=[i]) for i in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps(same))
"""
    assert run_script(library, body) == [True] * 48


FAULTS = {
    "cuDriverGetVersion": "cuDriverGetVersion failed with",
    "cuInit": "cuInit failed with",
    "cuCtxGetCurrent": "cuCtxGetCurrent failed with",
    "cuCtxGetDevice": "cuCtxGetDevice failed with",
    "cuDeviceGetAttribute": "cuDeviceGetAttribute failed with",
    "cuModuleLoadDataEx": "compiling the kernels (line 1: syntax error) failed with",
    "cuModuleGetFunction": "sum_grad_rows failed with",
    "cuLaunchKernel": "launching sum_grad_rows failed with",
}
"""Functions of the driver in the order in which the first run calls them, and the message if they fail."""

FAULTS_IN_ORDER = [("VERSION", "8000"), *(("FAIL", function) for function in FAULTS)]
FAULTS_IN_ORDER.insert(3, ("CONTEXT", "none"))


def test_faults_of_the_driver(library):
    """Each ends a run in one line that names the node, and the session goes on once it is over."""
    body = f"""
session, (feed,) = session_and_feeds(grad_op(), [2, 3, 5])
messages = {{}}
for name, value in {FAULTS_IN_ORDER}:
    os.environ["FAKE_CUDA_" + name] = value
    try:
        session.run(None, feed)
    except Exception as error:
        messages[value] = str(error)
    del os.environ["FAKE_CUDA_" + name]
dx, *_ = session.run(None, feed)
expected, *_ = expected_grad(feed | {{"axes": [0, 2]}}, [0, 2], True)
messages["difference"] = np.abs(dx - expected).max()
print(json.dumps(messages))
"""
    messages = run_script(library, body)
    assert messages.pop("difference") < 1e-5
    memory = "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"
    expected = {
        "8000": "the NVIDIA driver is for CUDA 8.0; expected 9.0 or newer",
        "none": "the calling thread has no CUDA context; expected that of the session's device",
        **{function: f"{message} {memory}" for function, message in FAULTS.items()},
    }
    assert messages.keys() == expected.keys()
    for fault, message in expected.items():
        assert messages[fault].endswith(f"bngrad.BatchNormalizationGrad, node 'the_node': {message}")


def test_arrays_between_elements_are_refused(library):
    """The CPU's op copies them, which takes a device's own functions on a GPU."""
    body = """
session, (feed,) = session_and_feeds(grad_op(), [2, 3, 5])
try:
    session.run(None, feed | {"scale": misaligned(feed["scale"])})
except Exception as error:
    print(json.dumps(str(error)))
"""
    message = "scale begins at an address that is no multiple of 4, the size of its elements; on a GPU it has to"
    assert run_script(library, body).endswith(f"node 'the_node': {message}")
