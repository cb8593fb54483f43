"""The CUDA kernels without a card: on the CPU against the reference, and as PTX that the assembler takes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cmake_build import SOURCES
from environments import cached_environment, run
from test_programs import run as run_program

unix = pytest.mark.skipif(sys.platform == "win32", reason="the emulation has a context for each thread")
CARDS = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")
REQUIREMENTS = ["ziglang==0.17.1", "nvidia-cuda-nvcc==13.*"]


def check_calls(build, seed, cases):
    """Random calls of every op, layout and type, with the results of the reference and the same bits twice."""
    output = run_program(build / "tests" / "cuda_fuzz", seed, cases)
    for line in output.splitlines():
        count = {what.strip(): int(number) for number, what in re.findall(r"(\d+) ([a-z ]+)", line)}
        assert count["failures"] == 0
        assert count["compared with the reference"] > cases // 3


@unix
def test_calls(build):
    check_calls(build, 20240229, 60)


@pytest.mark.long
@unix
def test_many_calls(build):
    check_calls(build, 20240301, 3000)


@pytest.fixture(scope="module")
def compiler(request):
    """An interpreter with the compiler and the assembler."""
    return cached_environment(request.config.cache.mkdir("cuda_compiler") / "venv", REQUIREMENTS)


@pytest.mark.long
def test_ptx(compiler, tmp_path):
    run(compiler, SOURCES / "cuda" / "ptx.py", tmp_path)
    modules = sorted(tmp_path.glob("*.ptx"))
    assert [module.stem for module in modules] == ["bfloat16", "float16", "float32", "float64"]
    (ptxas,) = Path(compiler).parents[1].glob("lib/python3*/site-packages/nvidia/*/bin/ptxas")
    for module in modules:
        kernels = re.findall(r"\.visible \.entry (\w+)\(", module.read_text())
        assert len(kernels) == len(set(kernels)) == 4 * (4 + 7) + 5
        for card in CARDS:
            run_program(ptxas, f"-arch={card}", module, "-o", tmp_path / "out")


def test_what_is_missing_is_named(tmp_path):
    done = subprocess.run(
        [sys.executable, "-S", SOURCES / "cuda" / "ptx.py", tmp_path], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (
        1, "ptx.py: ziglang is missing; install it with: pip install ziglang==0.17.1\n"
    )  # fmt: skip
