"""Commands that may have no more memory than what they begin with, and a little more: one line and exit code 2."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from fuzz.regressions import chain

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc, and a limit that the system keeps")

# Everything is imported before: a library that cannot be loaded has a message of its own.
PROGRAM = """
import resource, sys
from bngrad import cli, finalization, runtime
from bngrad.__main__ import main
from bngrad.ort_dialect import stock_ops
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


@pytest.mark.parametrize("command", ARGUMENTS)
def test_out_of_memory(command, tmp_path):
    (tmp_path / "model.onnx").write_bytes(chain(20_000).SerializeToString())
    ended = []
    for megabytes in MEGABYTES:
        ran = _run(megabytes, command, tmp_path)
        # Without memory CPython may unwind an error for ever (3.11's ceval.c); not with a little more.
        if ran.returncode == -signal.SIGXCPU:
            ran = _run(megabytes + 1, command, tmp_path)
        ended.append((ran.returncode, ran.stderr))
        assert (ran.returncode != 0, ran.stdout) == (True, ""), ran
        assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx"]
    # Not each of them: CPython may do so again or say that it passes over an error, glibc may abort for want of
    # thread-local data, and a library may lose the reason.
    assert sum(_is_one_line(*end) for end in ended) >= len(MEGABYTES) - 2, ended
    assert sum(stderr.startswith(OUT_OF_MEMORY) for _, stderr in ended) > len(MEGABYTES) / 2, ended


def _run(megabytes, command, folder):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(megabytes), command, "model.onnx", *ARGUMENTS[command]],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def _is_one_line(code: int, stderr: str) -> bool:
    return code == 2 and stderr.startswith("bngrad: error: ") and stderr.count("\n") == 1
