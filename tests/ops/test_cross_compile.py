"""The library and its test programs, cross-compiled for other systems by zig (ziglang on PyPI)."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from cmake_build import CMAKE, SOURCES, cmake
from environments import make_environment, run
from ops.wheels.targets import TARGETS

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(CMAKE is None, reason="no cmake"),
]

MAGIC = {"ELF": b"\x7fELF", "MACHO": b"\xcf\xfa\xed\xfe", "PE": b"MZ"}
"""The first bytes of a library, which identify its format."""

EXPORTS = [b"RegisterCustomOps", b"bngrad_version", b"bngrad_batch_normalization_grad"]


@pytest.fixture(scope="module")
def zig(tmp_path_factory):
    """The path of zig."""
    find = "import importlib.util; print(importlib.util.find_spec('ziglang').origin)"
    if importlib.util.find_spec("ziglang") is not None:
        return Path(run(sys.executable, "-c", find).strip()).parent / "zig"
    try:
        python = make_environment(tmp_path_factory.mktemp("zig"), ["ziglang"])
    except AssertionError as error:
        if "No matching distribution found" not in str(error):
            raise
        pytest.skip("ziglang is not installed, and no package index with it can be reached")
    return Path(run(python, "-c", find).strip()).parent / "zig"


@pytest.mark.parametrize("name", ["windows-x86_64", "linux-aarch64", "macos-arm64"])
def test_build(zig, tmp_path, name):
    """All sources compile without a warning, everything links, and the library exports its functions."""
    target = TARGETS[name]
    toolchain = {
        "CMAKE_TOOLCHAIN_FILE": SOURCES / "wheels" / "zig.cmake",
        "BNGRAD_ZIG": zig,
        "BNGRAD_ZIG_TARGET": target.zig,
    }
    settings = [f"-D{variable}={value}" for variable, value in toolchain.items()]
    cmake("-S", SOURCES, "-B", tmp_path, *settings, "-DBUILD_TESTING=ON")
    cmake("--build", tmp_path, "--parallel", "2")
    library = (tmp_path / target.library).read_bytes()
    assert library.startswith(MAGIC[target.file_format])
    assert [export for export in EXPORTS if export not in library] == []
