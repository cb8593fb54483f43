"""The library as programs in C and C++ meet it: what it exports, how it is compiled, and hosts without Python."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from bngrad.runtime import native_library
from cmake_build import SOURCES, cmake

needs_nm = pytest.mark.skipif(shutil.which("nm") is None, reason="no nm")
only_linux = pytest.mark.skipif(sys.platform != "linux", reason="the names are those of Linux")

PROGRAMS = (
    "c_caller",
    "depthwise_test",
    "pool_test",
    "float_mode_test",
    "partition_test",
    "cuda_scratch_test",
    "max_pool_grad_test",
    "col2im_test",
)
"""Test programs without arguments, which exit with 0 on success."""


def run(*command, **environment):
    command = [str(c) for c in command]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def symbols(*arguments):
    """(name, letter of `nm`) of every symbol."""
    lines = run("nm", "--portability", *arguments).splitlines()
    return {line.split()[0]: line.split()[1] for line in lines if not line.endswith(":")}


@needs_nm
@only_linux
def test_exports():
    names = symbols("-D", "--defined-only", native_library.library_path())
    functions = [
        line.split("(")[0].split()[-1] for line in (SOURCES / "bngrad.h").read_text().split("BNGRAD_EXPORT")[4:]
    ]
    assert set(names) == {"RegisterCustomOps", *functions}
    assert len(functions) == 24


def kernel_objects(build, pattern):
    """(instruction set, object file) of each kernel file; none is left out."""
    objects = [(o.name.split(".")[0], o) for o in sorted(build.glob(pattern))]
    assert {isa for isa, _ in objects} == set(native_library.isas())
    return objects


@pytest.mark.long
@needs_nm
@only_linux
def test_kernel_files_are_islands(build):
    """At -O0: one table each, nothing weak, nothing asked for that another file's flags might have compiled."""
    cmake("--build", build, "--target", "kernels_o0", "--parallel", "2")
    for isa, o in kernel_objects(build, "**/kernels_o0.dir/**/*.o"):
        names = symbols(o)
        assert [name for name, letter in names.items() if letter.upper() in "VWu"] == []
        defined = [name for name, letter in names.items() if letter.isupper() and letter != "U"]
        assert defined == [f"_ZN6bngrad{len(isa)}{isa}6kTableE"]
        undefined = {name for name, letter in names.items() if letter == "U"}
        assert undefined <= {"_GLOBAL_OFFSET_TABLE_", "memcpy", "memset", "sqrt", "sqrtf", "__stack_chk_fail"}


@needs_nm
@only_linux
def test_kernels_call_nothing_for_a_few_elements(build):
    """A compiler that stops inlining leaves sums in memory: loops are several times as slow then."""
    for isa, o in kernel_objects(build, "**/bngrad_core.dir/kernels/*.o"):
        if isa == "scalar":
            continue
        name = rf"bngrad::{isa}::\(anonymous namespace\)::(\w+)<"
        lines = run("nm", "--demangle", "--defined-only", o).splitlines()
        functions = {re.search(name, line)[1] for line in lines if line.split()[1] == "t"}
        whole = r"AdamUpdate|Correlate(Weights)?|MergePhases|SplitPhases|"
        whole += r"(Map|Sum|SumAndMap)((Short|Long)?Rows|Columns|Strips)(By|BackTo|(Of|As)(Rows|Columns))?"
        assert [f for f in functions if not re.fullmatch(whole, f)] == []
        assert "SumRows" in functions


def compare_kernels(build, isa, every=1):
    output = run(build / "tests" / "kernels_test", isa, f"every={every}")
    assert re.match(rf"{isa}: [1-9]\d* shapes" if native_library.isas()[isa] else f"{isa}: skipped", output)


@pytest.mark.parametrize(
    "isa",  # the others are compared with the scalar kernels, which would be compared with themselves
    [pytest.param(isa, marks=[pytest.mark.long] * (isa == "scalar")) for isa in native_library.isas()],
)
@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.long)])  # each length has 50 shapes
def test_kernels_bit_for_bit_and_in_bounds(build, isa, every):
    compare_kernels(build, isa, every)


def test_c_caller(build):
    assert run(build / "tests" / "c_caller").startswith(f"bngrad {native_library.version()}, ")


FAULTS = {"abort": "SIGABRT", "null": "SIGSEGV", "overflow": "SIGSEGV", "illegal": "SIGILL"}


@pytest.mark.parametrize("fault", FAULTS)
def test_crash_handler(build, fault):
    command = [str(build / "tests" / "fault"), fault, "the message", "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (7, "")
    assert done.stderr == f"the message ({FAULTS[fault]})\n"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["none"], 1, "message is null; expected a string\n"),
        (["none", "words", "0"], 1, "exit_code is 0; expected 1 to 125\n"),
        (["none", "words", "126"], 1, "exit_code is 126; expected 1 to 125\n"),
        (["none", "words", "125"], 0, ""),
        (["abort", "long " * 2000, "3"], 3, ""),
    ],
)
def test_crash_handler_arguments(build, arguments, code, said):
    done = subprocess.run([build / "tests" / "fault", *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, said)
    assert done.stderr in ("", ("long " * 2000)[:4095] + " (SIGABRT)\n")


def test_depthwise_convolutions(build):
    assert run(build / "tests" / "depthwise_test", "100") == "100 shapes, 0 failures\n"


def test_pool(build):
    run(build / "tests" / "pool_test")


def test_max_pool_grad(build):
    run(build / "tests" / "max_pool_grad_test")


def test_max_pool_grad_on_cuda(build):
    """The kernels in the emulation; planes that are too large are refused."""
    program = build / "tests" / "cuda_max_pool_grad_test"
    if not program.exists():
        pytest.skip("this system has no contexts, in which the kernels run")
    assert run(program).count("a GPU takes at most 2147483647") == 8


def test_sums_over_windows(build):
    run(build / "tests" / "col2im_test")


def test_floating_point_mode_of_the_caller(build):
    assert run(build / "tests" / "float_mode_test") == "ok\n"


def test_partition(build):
    assert re.fullmatch(r"[1-9]\d* partitions, [1-9]\d* broken ones\n", run(build / "tests" / "partition_test"))


def test_a_broken_partition_is_asserted(build):
    command = [str(build / "tests" / "partition_test"), "broken"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGABRT, "")
    assert "BrokenInvariant(layout, partition) == nullptr" in done.stderr


@only_linux
@pytest.mark.parametrize("case", ["threads", "callers", "registration"])
def test_forks(build, case):
    assert run(build / "tests" / "fork_test", case) == "ok\n"


def build_sanitized(folder, sanitizers, *of_build):
    # More optimizing and full debug information make the compiler take four times as long.
    flags = ["-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1 -g1", "-DCMAKE_C_FLAGS=-O1 -g1"]
    cmake("-S", SOURCES, "-B", folder, "-DBUILD_TESTING=ON", f"-DBNGRAD_SANITIZE={sanitizers}", *flags)
    cmake("--build", folder, "--parallel", "2", *of_build)


def sanitized(library):
    """The environment in which Python uses a library that was built with sanitizers.

    Python is not, so their run-time library comes first by force; leaks are Python's own.
    """
    linked = [
        line.split()[2] for line in run("ldd", library).splitlines() if "libasan" in line or "libubsan" in line
    ]
    return {
        "LD_PRELOAD": " ".join(linked),
        "ASAN_OPTIONS": "detect_leaks=0",
        "BNGRAD_LIBRARY": str(library),
    }


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.skipif(shutil.which("clang++") is None, reason="no clang++")
def test_clang(tmp_path):
    """Clang compiles all sources without a warning, and the programs pass."""
    compilers = ["-DCMAKE_C_COMPILER=clang", "-DCMAKE_CXX_COMPILER=clang++"]
    cmake("-S", SOURCES, "-B", tmp_path, "-DBUILD_TESTING=ON", *compilers)
    cmake("--build", tmp_path, "--parallel", "2")
    for isa in native_library.isas():
        compare_kernels(tmp_path, isa)
    for program in PROGRAMS:
        run(tmp_path / "tests" / program)


@pytest.mark.long
@only_linux
def test_thread_sanitizer(tmp_path):
    """The threads that the C interface keeps, with the sanitizer that sees races."""
    programs = ("pool_test", "float_mode_test", "cuda_scratch_test")
    build_sanitized(tmp_path, "thread", "--target", *programs)
    for program in programs:
        run(tmp_path / "tests" / program)


@pytest.mark.long
@pytest.mark.timeout(3600)  # some forty minutes on two cores
@only_linux
def test_sanitizers(tmp_path):
    """The programs and the tests in ONNX Runtime again, with the address and undefined-behaviour sanitizers."""
    build_sanitized(tmp_path, "address,undefined")
    with ThreadPoolExecutor(2) as two:
        list(two.map(partial(compare_kernels, tmp_path), native_library.isas()))
    for program in PROGRAMS:
        run(tmp_path / "tests" / program)
    environment = sanitized(tmp_path / "libbngrad.so")
    # Every instruction set runs the same code but for the kernels, which had their turn: scalar stands for all.
    names = ("ort_op", "kernels", "c_abi", "collective", "synchronized", "ort_synchronized")
    tests = [Path(__file__).with_name(f"test_{name}.py") for name in names]
    chosen = ["-m", "not long", "-k", "not avx and not ten_million and not out_of_memory"]
    run(sys.executable, "-m", "pytest", "-q", *chosen, "-p", "no:cacheprovider", *tests, **environment)


@pytest.mark.long
def test_install(build, tmp_path):
    """`cmake --install` gives a C user a header and a library."""
    cmake("--install", build, "--prefix", tmp_path)
    assert [p.name for p in tmp_path.glob("include/*")] == ["bngrad.h"]
    assert [p.name for p in tmp_path.glob("lib*/*")] == [
        "libbngrad.so" if sys.platform == "linux" else native_library.library_path().name
    ]


def onnxruntime_library():
    libraries = sorted((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
    if not libraries:
        pytest.skip(f"onnxruntime {onnxruntime.__version__} brings no library of its own")
    return libraries[0]


@only_linux
@pytest.mark.parametrize("threads", [1, 2])
def test_host_without_python(build, tmp_path, threads):
    from test_ort_op import grad_op, make_feeds, training_op

    library = onnxruntime_library()
    for op in (grad_op(), training_op()):
        feeds = make_feeds(op, [8, 33, 13, 14], [0, 2, 3])
        model = tmp_path / "model.onnx"
        model.write_bytes(op.model(feeds, axes_constant=False))
        arguments = []
        for name, array in feeds.items():
            array.tofile(tmp_path / f"{name}.in")
            arguments += ["in", name, tmp_path / f"{name}.in", ",".join(map(str, array.shape))]
        for name in op.outputs:
            arguments += ["out", name, tmp_path / f"{name}.out"]
        run(build / "tests" / "host", library, native_library.library_path(), model, threads, *arguments)
        for name, expected in zip(op.outputs, op.run(feeds, axes_constant=False), strict=True):
            actual = np.fromfile(tmp_path / f"{name}.out", np.float32).reshape(expected.shape)
            np.testing.assert_array_equal(actual, expected)


@only_linux
def test_host_reports_our_errors(build, tmp_path):
    from test_ort_op import grad_op, make_feeds

    op = grad_op()._replace(attributes={"training_mode": 7})
    (tmp_path / "model.onnx").write_bytes(op.model(make_feeds(op, [2, 3], [0])))
    command = [
        build / "tests" / "host",
        onnxruntime_library(),
        native_library.library_path(),
        tmp_path / "model.onnx",
        "1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert (
        "bngrad.BatchNormalizationGrad, node 'the_node': attribute training_mode is 7; expected 0 or 1"
        in done.stderr
    )
