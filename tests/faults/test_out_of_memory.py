"""Tests commands with little additional memory: one line of error and exit code 2."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from fuzz.regressions import chain

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and limits on the address space")

# Everything is imported before the limit, because a library that cannot be loaded has another message.
PROGRAM = """
import resource, sys
from bngrad import cli
from bngrad.training import finalize as finalization
from bngrad.runtime import session as runtime
from bngrad.__main__ import main
from bngrad.opset.ort_dialect import stock_ops
stock_ops()
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (int(sys.argv.pop(1)) << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
resource.setrlimit(resource.RLIMIT_CPU, (20, 25))
main()
"""
OUT_OF_MEMORY = "bngrad: error: out of memory"
MEGABYTES = (0, 4, 12, 20, 30, 45, 60)
ARGUMENTS = {
    "inspect": [],
    "rewrite": ["-o", "out.onnx"],
    "differentiate": ["-o", "out.onnx", "--wrt", "v0", "--loss", "loss"],
}


# Allocates only small integers, so that CPython has no free block left to handle the error.
ALLOCATES_ALL_MEMORY = """
from bngrad.cli import cli
held = [None] * (1 << 21)

@cli.command("eat")
def eat(**_options):
    for place in range(len(held)):
        held[place] = place + (1 << 20)
"""


def test_all_memory_is_allocated(tmp_path):
    done = _run(30, ["eat"], tmp_path, ALLOCATES_ALL_MEMORY)
    assert _is_one_line(done.returncode, done.stderr), done
    assert done.stderr.startswith(OUT_OF_MEMORY)


@pytest.mark.parametrize(
    ("command", "sizes"),
    [("inspect", MEGABYTES[::3]), *(pytest.param(name, MEGABYTES, marks=pytest.mark.long) for name in ARGUMENTS)],
    ids=["some", *ARGUMENTS],
)
def test_out_of_memory(command, sizes, tmp_path):
    (tmp_path / "model.onnx").write_bytes(chain(20_000).SerializeToString())
    arguments = [command, "model.onnx", *ARGUMENTS[command]]
    results = []
    for megabytes in sizes:
        done = _run(megabytes, arguments, tmp_path)
        # CPython may loop forever while it handles an error without memory; a little more memory avoids that.
        if done.returncode == -signal.SIGXCPU:
            done = _run(megabytes + 1, arguments, tmp_path)
        results.append((done.returncode, done.stderr))
        assert (done.returncode != 0, done.stdout) == (True, ""), done
        assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx"]
    # Exceptions are allowed: CPython may loop or print an ignored exception, glibc may abort without memory for
    # thread-local data, and a library may report another reason.
    assert sum(_is_one_line(*result) for result in results) >= len(sizes) - 2, results
    assert sum(stderr.startswith(OUT_OF_MEMORY) for _, stderr in results) > len(sizes) / 2, results


def _run(megabytes, arguments, folder, before=""):
    return subprocess.run(
        [sys.executable, "-c", before + PROGRAM, str(megabytes), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def _is_one_line(code: int, stderr: str) -> bool:
    return code == 2 and stderr.startswith("bngrad: error: ") and stderr.count("\n") == 1
