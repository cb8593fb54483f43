"""Compilers of the small libraries: zig for every platform, else that of this machine for Linux."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from ops.wheels.targets import TARGETS
from small_wheel import source

FLAGS = {
    "ELF": ["-shared", "-fPIC", "-nostdlib", "-Wl,-z,noexecstack"],
    "MACHO": ["-dynamiclib", "-install_name", "@rpath/libbngrad.dylib"],
    "PE": ["-shared"],
}
STRIP = {"ELF": ["-s"], "MACHO": ["-s", "-Wl,-x"], "PE": ["-s"]}


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """Returns a function: the library of a platform, from the source of small_wheel.py and additions to it."""
    folder = tmp_path_factory.mktemp("libraries")

    @cache
    def compiled(name, extra="", *flags, strip=True):
        target = TARGETS[name]
        path = folder / f"{name}-{len(list(folder.iterdir()))}"
        path.with_suffix(".c").write_text(source(target, extra), encoding="utf-8")
        options = [*FLAGS[target.file_format], *flags, *(STRIP[target.file_format] if strip else [])]
        command = [*compiler(name), *options, path.with_suffix(".c"), "-o", path]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, cwd=folder)
        assert done.returncode == 0, done.stderr
        return path.read_bytes()

    return compiled


def compiler(name):
    """The command of a compiler for a platform; the test is skipped if there is none."""
    zig = importlib.util.find_spec("ziglang")
    if zig is not None:
        return [Path(zig.origin).parent / "zig", "cc", "-target", TARGETS[name].zig, "-O2", "-g0"]
    prefix = f"{name.removeprefix('linux-')}-linux-gnu-gcc"
    if name.startswith("linux-") and shutil.which(prefix):
        return [prefix, "-O2"]
    pytest.skip(f"no compiler for {name}: install ziglang")
