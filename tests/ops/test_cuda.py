"""The CUDA kernels without a card: on the CPU against the reference, and as PTX that the assembler takes."""

from __future__ import annotations

import lzma
import os
import random
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from cmake_build import CMAKE, SOURCES, cmake
from environments import cached_environment
from ops.cuda import ptx
from test_programs import only_linux
from test_programs import run as run_program

CARDS = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")
OPS = [Path(__file__).with_name(name) for name in ("test_ort_op.py", "test_max_pool_grad.py")]
REQUIREMENTS = ["ziglang==0.17.1", "nvidia-cuda-nvcc==13.*"]


def check_calls(build, seed, cases):
    """Random calls of every op, layout and type, with the results of the reference and the same bits twice."""
    output = run_program(build / "tests" / "cuda_fuzz", seed, cases)
    for line in output.splitlines():
        count = {what.strip(): int(number) for number, what in re.findall(r"(\d+) ([a-z ]+)", line)}
        assert count["failures"] == 0
        assert count["compared with the reference"] > cases // 3


@only_linux
def test_calls(build):
    check_calls(build, 20240229, 60)


@pytest.mark.long
@only_linux
def test_many_calls(build):
    check_calls(build, 20240301, 3000)


LAUNCHES = """132 multiprocessors
module float32
function sum_grad_rows
launch 64x3x1 of 256 threads, stream 0x10, argument 7
function map_grad_rows
launch 64x3x1 of 256 threads, stream 0x10, argument 7
launch 64x3x1 of 256 threads, stream 0x10, argument 7
"""
FAULTS = {
    "libnone.so": ({}, "the NVIDIA driver is not installed: .*libnone.so cannot be loaded. Install it, or run on"),
    "libfake_cuda_missing.so": (
        {},
        "has no cuLaunchKernel: the NVIDIA driver is too old; expected one for CUDA 9.0",
    ),
}
FAULTS_OF_CALLS = [
    ({"FAKE_CUDA_VERSION": "8000"}, "the NVIDIA driver is for CUDA 8.0; expected 9.0 or newer"),
    (
        {"FAKE_CUDA_CONTEXT": "none"},
        "the calling thread has no CUDA context; expected that of the session's device",
    ),
    ({"FAKE_CUDA_FAIL": "cuModuleLoadDataEx"}, r"compiling the kernels \(line 1: syntax error\) failed with CUDA"),
    ({"FAKE_CUDA_FAIL": "cuModuleGetFunction"}, "sum_grad_rows failed with CUDA_ERROR_OUT_OF_MEMORY"),
    (
        {"FAKE_CUDA_FAIL": "cuLaunchKernel"},
        r"launching sum_grad_rows failed with CUDA_ERROR_OUT_OF_MEMORY \(2\): out",
    ),
    *(
        ({"FAKE_CUDA_FAIL": function}, f"{function} failed with CUDA_ERROR_OUT_OF_MEMORY")
        for function in (
            "cuInit",
            "cuDriverGetVersion",
            "cuCtxGetCurrent",
            "cuCtxGetDevice",
            "cuDeviceGetAttribute",
        )
    ),
]


def drive(build, library, **environment):
    """The exit code and the output of the program with a library in place of the driver's."""
    command = [build / "tests" / "cuda_driver_test", build / "tests" / library]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)
    return done.returncode, done.stdout


@only_linux
def test_the_driver_launches_kernels(build):
    """A module is compiled once, and a function is looked up once."""
    assert drive(build, "libfake_cuda.so") == (0, LAUNCHES)


@only_linux
@pytest.mark.parametrize(
    ("library", "environment", "message"),
    [
        *((library, *fault) for library, fault in FAULTS.items()),
        *(("libfake_cuda.so", *fault) for fault in FAULTS_OF_CALLS),
    ],
)
def test_a_fault_of_the_driver_is_named(build, library, environment, message):
    code, output = drive(build, library, **environment)
    assert code == 1
    assert re.search(f"^error: .*{message}", output, re.MULTILINE)


TEXTS = {
    "nothing": b"",
    "one byte": b"a",
    "a run": b"a" * 100_000,
    "no repetition": random.Random(0).randbytes(5000),  # noqa: S311
    "text": Path(__file__).read_bytes() * 3,
}


def decompress(build, folder, stream, size):
    (folder / "stream").write_bytes(stream)
    command = [build / "tests" / "cuda_ptx", folder / "stream", str(size)]
    return subprocess.run(command, capture_output=True, check=False)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_decompression(build, tmp_path, text):
    stream = lzma.compress(text, format=lzma.FORMAT_RAW, filters=[ptx.LZMA])
    assert decompress(build, tmp_path, stream, len(text)).stdout == text
    for corrupt in (stream[:4], stream[: len(stream) // 2]):
        done = decompress(build, tmp_path, corrupt, len(text) + 10_000)
        assert (done.returncode, done.stderr) == (1, b"error: the compressed kernels are corrupt\n")


@pytest.fixture(scope="module")
def compiler(request):
    """An interpreter with the compiler and the assembler."""
    return cached_environment(request.config.cache.mkdir("cuda_compiler") / "venv", REQUIREMENTS)


@pytest.fixture(scope="module")
def build_with_kernels(compiler, tmp_path_factory):
    """The folder of a build whose library has the kernels as PTX."""
    folder = tmp_path_factory.mktemp("with_kernels")
    options = ("-DBUILD_TESTING=ON", "-DSKBUILD=", "-DBNGRAD_CUDA=ON", f"-DPython3_EXECUTABLE={compiler}")
    cmake("-S", SOURCES, "-B", folder, *options)
    cmake("--build", folder, "--parallel", "2", "--target", "bngrad", "cuda_ptx")
    return folder


@pytest.mark.long
def test_ptx(compiler, build_with_kernels, tmp_path):
    """The text in the library is what the assembler of each card takes."""
    run_program(build_with_kernels / "tests" / "cuda_ptx", tmp_path)
    modules = sorted(tmp_path.glob("*.ptx"))
    assert [module.stem for module in modules] == ["1", "10", "11", "16"]
    (ptxas,) = Path(compiler).parents[1].glob("lib/python3*/site-packages/nvidia/*/bin/ptxas")
    for module in modules:
        text = module.read_text()
        kernels = re.findall(r"\.visible \.entry (\w+)\(", text)
        assert len(kernels) == len(set(kernels)) == 4 * (4 + 7) + 8 + 8
        assert ".local" not in text  # every thread would copy its arguments, or keep sums in memory
        for card in CARDS:
            run_program(ptxas, f"-arch={card}", module, "-o", tmp_path / "out")


@pytest.mark.long
@only_linux
def test_a_library_with_kernels_on_the_cpu(build, build_with_kernels):
    """Ops of two providers have one name; sessions on the CPU are as before."""
    libraries = [folder / "libbngrad.so" for folder in (build, build_with_kernels)]
    if not has_cuda(libraries[0]):
        sizes = [library.stat().st_size for library in libraries]
        assert sizes[1] - sizes[0] < 300_000
    assert has_cuda(libraries[1])
    options = ("-q", "-n0", "-p", "no:cacheprovider")
    run_program(sys.executable, "-m", "pytest", *options, *OPS, BNGRAD_LIBRARY=str(libraries[1]))


def has_cuda(library):
    command = [sys.executable, "-c", f"import ctypes; print(ctypes.CDLL({str(library)!r}).bngrad_has_cuda())"]
    return int(run_program(*command)) == 1


def test_what_is_missing_is_named(tmp_path):
    done = subprocess.run(
        [sys.executable, "-S", SOURCES / "cuda" / "ptx.py", tmp_path / "ptx.cc"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (
        1, "ptx.py: ziglang is missing; install it with: pip install ziglang==0.17.1\n"
    )  # fmt: skip


@pytest.mark.skipif(find_spec("ziglang") is not None, reason="this Python has the compiler")
@pytest.mark.parametrize("cuda", ["AUTO", "ON"])
def test_a_build_without_the_compiler(tmp_path, cuda):
    options = (f"-DBNGRAD_CUDA={cuda}", f"-DPython3_EXECUTABLE={sys.executable}", "-DSKBUILD=")
    done = subprocess.run(
        [CMAKE, "-S", SOURCES, "-B", tmp_path, *options], capture_output=True, text=True, check=False
    )
    output = " ".join((done.stdout + done.stderr).split())
    if cuda == "AUTO":
        assert done.returncode == 0
        assert f"Without CUDA kernels: {sys.executable} has no ziglang (pip install ziglang==0.17.1)" in output
    else:
        assert done.returncode == 1
        assert "BNGRAD_CUDA=ON needs a Python with ziglang: pip install ziglang==0.17.1" in output
