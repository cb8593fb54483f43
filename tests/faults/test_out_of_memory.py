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


# Of small numbers alone, so that none is left for those that CPython keeps where an error leaves a block.
TO_THE_LAST_BYTE = """
from bngrad.cli import cli
held = [None] * (1 << 21)

@cli.command("eat")
def eat():
    for place in range(len(held)):
        held[place] = place + (1 << 20)
"""


def test_the_last_byte(tmp_path):
    ran = _run(30, ["eat"], tmp_path, TO_THE_LAST_BYTE)
    assert _is_one_line(ran.returncode, ran.stderr), ran
    assert ran.stderr.startswith(OUT_OF_MEMORY)


@pytest.mark.parametrize("command", ARGUMENTS)
def test_out_of_memory(command, tmp_path):
    (tmp_path / "model.onnx").write_bytes(chain(20_000).SerializeToString())
    arguments = [command, "model.onnx", *ARGUMENTS[command]]
    ended = []
    for megabytes in MEGABYTES:
        ran = _run(megabytes, arguments, tmp_path)
        # CPython may unwind an error for ever in a long function of the command; not with a little more memory.
        if ran.returncode == -signal.SIGXCPU:
            ran = _run(megabytes + 1, arguments, tmp_path)
        ended.append((ran.returncode, ran.stderr))
        assert (ran.returncode != 0, ran.stdout) == (True, ""), ran
        assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx"]
    # Not each of them: CPython may do so again or say that it passes over an error, glibc may abort for want of
    # thread-local data, and a library may lose the reason.
    assert sum(_is_one_line(*end) for end in ended) >= len(MEGABYTES) - 2, ended
    assert sum(stderr.startswith(OUT_OF_MEMORY) for _, stderr in ended) > len(MEGABYTES) / 2, ended


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
