"""Random calls of the C ABI and random models on stock ONNX Runtime.

`make fuzz-kernels` runs many more, with the sanitizers: FUZZ_SEED and FUZZ_CASES say which and how many. What was
found has its case in test_c_abi.py and test_ort_op.py.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bngrad.runtime import native_library
from test_programs import build_sanitized, only_linux, run, sanitized

forks = pytest.mark.skipif(sys.platform == "win32", reason="a process for each instruction set is a fork")
ORT_FUZZ = Path(__file__).with_name("ort_fuzz.py")


SEED = int(os.environ.get("FUZZ_SEED", "20240229"))
CASES = int(os.environ.get("FUZZ_CASES", "20000"))


def check_calls(program, seed, cases):
    """Every instruction set had its calls, of every kind, and none went wrong."""
    output = run(program, seed, cases)
    print(output)
    lines = re.findall(r"^(\w+): (\d+ kernel calls, .*)", output, re.MULTILINE)
    assert {isa for isa, _ in lines} == {isa for isa, supported in native_library.isas().items() if supported}
    for _, line in lines:
        count = {what.strip(): int(n) for n, what in re.findall(r"(\d+) ([a-z ]+)", line)}
        assert count["failures"] == 0
        assert count["computed"] > cases
        assert count["refused"] > cases // 4
        assert min(count["of nothing"], count["shared among threads"], count["others"]) > cases // 2000


def check_models(seed, cases, **environment):
    output = run(sys.executable, ORT_FUZZ, seed, cases, **environment)
    print(output)
    counts = dict(part.split(" ", 1)[::-1] for part in output.strip().split(", "))
    assert set(counts) == {"computed", "refused"}
    assert min(map(int, counts.values())) > cases // 3


@forks
def test_calls(build):
    check_calls(build / "tests" / "kernel_fuzz", 20240229, 1000)


@forks
def test_the_program_says_what_it_expects(build):
    done = subprocess.run([build / "tests" / "kernel_fuzz"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "kernel_fuzz SEED COUNT [FIRST]\n")


def test_models():
    check_models(20240229, 300)


@pytest.fixture(scope="module")
def sanitized_build(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sanitized")
    build_sanitized(folder, "address,undefined", "--target", "kernel_fuzz", "bngrad")
    return folder


@pytest.mark.long
@pytest.mark.timeout(0)
@only_linux
def test_calls_with_sanitizers(sanitized_build):
    check_calls(sanitized_build / "tests" / "kernel_fuzz", SEED, CASES)


@pytest.mark.long
@pytest.mark.timeout(0)
@only_linux
def test_models_with_sanitizers(sanitized_build):
    check_models(SEED, CASES // 10, **sanitized(sanitized_build / "libbngrad.so"))
