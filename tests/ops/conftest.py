"""What the tests of the library share: a process for each instruction set, and the test programs."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from bngrad import native

SOURCES = Path(__file__).parents[2] / "ops"


class Kernels:
    """The functions of `bngrad.native`, computed with one instruction set, in a process of its own.

    The library chooses once for a process, so forcing it takes one each.
    """

    def __init__(self, isa):
        self.isa = isa
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, context, initializer=_force_isa, initargs=(isa,))
        assert self.call("active_isa") == isa

    def call(self, function, *arguments, **options):
        return self._pool.submit(_call, function, arguments, options).result()

    def grad(self, *arguments, **options):
        return self.call("batch_normalization_grad", *arguments, **options)

    def training(self, *arguments, **options):
        return self.call("batch_normalization_training", *arguments, **options)

    def statistics(self, *arguments, **options):
        return self.call("batch_normalization_statistics", *arguments, **options)

    def close(self):
        self._pool.shutdown()


def _force_isa(isa):
    os.environ[native.ISA_VARIABLE] = isa


def _call(function, arguments, options):
    return getattr(native, function)(*arguments, **options)


@pytest.fixture(scope="session", params=native.isas())
def kernels(request):
    """Every instruction set that the library was compiled for; those that this machine lacks are skipped."""
    isa = request.param
    if not native.isas()[isa]:
        pytest.skip(f"this machine has no {isa}")
    kernels = Kernels(isa)
    yield kernels
    kernels.close()


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """The folder of a CMake build of the library with the test programs, from the sources as they are."""
    folder = tmp_path_factory.mktemp("build")
    if shutil.which("cmake") is None:
        pytest.skip("no cmake")
    cmake("-S", SOURCES, "-B", folder, "-DBUILD_TESTING=ON")
    cmake("--build", folder, "--parallel", "2")
    return folder


def cmake(*arguments):
    done = subprocess.run(["cmake", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
