"""What the tests of the library share: a process for each instruction set, and the test programs."""

from __future__ import annotations

import pytest

from bngrad import native_library
from cmake_build import CMAKE, SOURCES, cmake
from isa_process import Kernels


@pytest.fixture(scope="session", params=native_library.isas())
def kernels(request):
    """Every instruction set that the library was compiled for; those that this machine lacks are skipped."""
    isa = request.param
    if not native_library.isas()[isa]:
        pytest.skip(f"this machine has no {isa}")
    kernels = Kernels(isa)
    yield kernels
    kernels.close()


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """The folder of a CMake build of the library with the test programs, from the sources as they are."""
    folder = tmp_path_factory.mktemp("build")
    if CMAKE is None:
        pytest.skip("no cmake")
    cmake("-S", SOURCES, "-B", folder, "-DBUILD_TESTING=ON")
    cmake("--build", folder, "--parallel", "2")
    return folder
