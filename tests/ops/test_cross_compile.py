"""The library and its test programs, cross-compiled for other systems by zig (ziglang on PyPI)."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from typing import NamedTuple

import pytest

from cmake_build import CMAKE, SOURCES, cmake
from environments import make_environment

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(CMAKE is None, reason="no cmake"),
    pytest.mark.skipif(sys.platform == "win32", reason="the compiler is wrapped in shell scripts"),
]


class Target(NamedTuple):
    """A target, by its name in CMake and the library that is built for it."""

    system: str
    processor: str
    library: str
    magic: bytes
    """The first bytes of the library, which identify its format."""


TARGETS = {
    "x86_64-windows-gnu": Target("Windows", "x86_64", "bngrad.dll", b"MZ"),
    "aarch64-linux-gnu": Target("Linux", "aarch64", "libbngrad.so", b"\x7fELF"),
    "aarch64-macos": Target("Darwin", "arm64", "libbngrad.dylib", b"\xcf\xfa\xed\xfe"),
}

EXPORTS = [b"RegisterCustomOps", b"bngrad_version", b"bngrad_batch_normalization_grad"]


@pytest.fixture(scope="module")
def zig(tmp_path_factory):
    """A Python interpreter that has ziglang."""
    if importlib.util.find_spec("ziglang") is not None:
        return sys.executable
    try:
        return make_environment(tmp_path_factory.mktemp("zig"), ["ziglang"])
    except AssertionError as error:
        if "No matching distribution found" not in str(error):
            raise
        pytest.skip("ziglang is not installed, and no package index with it can be reached")


def write_toolchain(folder, python, name, target):
    """Writes a CMake toolchain file; returns its path."""
    commands = {"cc": f"cc -target {name}", "c++": f"c++ -target {name}"}
    commands |= {tool: tool for tool in ("ar", "ranlib", "rc")}
    for tool, arguments in commands.items():
        script = folder / tool
        script.write_text(f'#!/bin/sh\nexec "{python}" -m ziglang {arguments} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    settings = {
        "CMAKE_SYSTEM_NAME": target.system,
        "CMAKE_SYSTEM_PROCESSOR": target.processor,
        "CMAKE_C_COMPILER": folder / "cc",
        "CMAKE_CXX_COMPILER": folder / "c++",
        "CMAKE_AR": folder / "ar",
        "CMAKE_RANLIB": folder / "ranlib",
        "CMAKE_RC_COMPILER": folder / "rc",
        # CMake requires it for macOS, but only `cmake --install` runs it.
        "CMAKE_INSTALL_NAME_TOOL": shutil.which("true"),
    }
    toolchain = folder / "toolchain.cmake"
    lines = [f'set({variable} "{value}")\n' for variable, value in settings.items()]
    toolchain.write_text("".join(lines), encoding="utf-8")
    return toolchain


@pytest.mark.parametrize("name", TARGETS)
def test_build(zig, tmp_path, name):
    """All sources compile without a warning, everything links, and the library exports its functions."""
    target, build = TARGETS[name], tmp_path / "build"
    toolchain = write_toolchain(tmp_path, zig, name, target)
    cmake("-S", SOURCES, "-B", build, f"-DCMAKE_TOOLCHAIN_FILE={toolchain}", "-DBUILD_TESTING=ON")
    cmake("--build", build, "--parallel", "2")
    library = (build / target.library).read_bytes()
    assert library.startswith(target.magic)
    assert [export for export in EXPORTS if export not in library] == []
