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
resource.setrlimit(resource.RLIMIT_CPU, (30, 35))
main()
"""
OUT_OF_MEMORY = "bngrad: error: out of memory"
MEGABYTES = (0, 4, 16, 30, 45, 60, 75)
ARGUMENTS = {
    "inspect": [],
    "rewrite": ["-o", "out.onnx"],
    "differentiate": ["-o", "out.onnx", "--wrt", "v0", "--loss", "loss"],
}


@pytest.mark.parametrize("command", ARGUMENTS)
def test_out_of_memory(command, tmp_path):
    (tmp_path / "model.onnx").write_bytes(chain(20_000).SerializeToString())
    said = []
    for megabytes in MEGABYTES:
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(megabytes), command, "model.onnx", *ARGUMENTS[command]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        said.append(ran.stderr)
        # CPython unwinds an error for ever where it has no memory for a number (seen twice, in 3.11's ceval.c).
        if ran.returncode == -signal.SIGXCPU:
            continue
        assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1), ran
        assert ran.stderr.startswith("bngrad: error: ")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx"]
    # Where Python or a library loses the reason, the message is that of an internal error.
    assert sum(line.startswith(OUT_OF_MEMORY) for line in said) > len(MEGABYTES) / 2, said
