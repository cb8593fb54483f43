"""A process for each instruction set, and the test programs, which the tests of the library share."""

from __future__ import annotations

import os

import pytest
from filelock import FileLock

from bngrad.runtime import native_library
from cmake_build import CMAKE, SOURCES, cmake
from isa_process import Kernels

_NATIVE = SOURCES.parent / "build" / "native"
"""Where the Makefile has the library built: what is of the sources as they are is not compiled again."""


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc):
    """Runs a test with every instruction set before the next test, so that it computes its references once."""
    if "kernels" in metafunc.fixturenames:
        names = native_library.isas()
        newest = next(isa for isa, is_supported in names.items() if is_supported)
        short = {newest} if hasattr(metafunc.function, "is_for_newest_isa") else names
        isas = [pytest.param(isa, marks=[pytest.mark.long] * (isa not in short)) for isa in names]
        metafunc.parametrize("kernels", isas, indirect=True, scope="function")


@pytest.fixture(scope="session")
def isa_processes():
    """The processes by instruction set."""
    processes = {}
    yield processes
    for process in processes.values():
        process.close()


@pytest.fixture
def kernels(request, isa_processes):
    """Every instruction set that the library was compiled for; those that this machine lacks are skipped."""
    isa = request.param
    if not native_library.isas()[isa]:
        pytest.skip(f"this machine has no {isa}")
    if isa not in isa_processes:
        isa_processes[isa] = Kernels(isa)
    return isa_processes[isa]


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """The folder of a CMake build of the library with the test programs, from the sources as they are."""
    if CMAKE is None:
        pytest.skip("no cmake")
    folder = _NATIVE
    if not folder.exists():
        base = tmp_path_factory.getbasetemp()
        folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "build"
    # Once for all processes that test: their folders are in one.
    with FileLock(folder.with_suffix(".lock")):
        # As without scikit-build-core, which has a way of its own to install.
        cmake("-S", SOURCES, "-B", folder, "-DBUILD_TESTING=ON", "-DSKBUILD=")
        cmake("--build", folder, "--parallel", "2")
    return folder
