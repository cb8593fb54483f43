"""Checks of Windows' own features, by a Windows Python with bngrad: windows_process.py FOLDER. Prints JSON.

Each check is a sentence of docs/reference/platforms.md; its value is true, or what was seen instead.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

LONG_PATH = 300
"""Characters; without the prefix \\\\?\\ or the setting LongPathsEnabled, Windows allows 260."""


def stays_loaded(_: Path) -> object:
    """FreeLibrary does not unload the library, and its threads still run."""
    from bngrad.runtime import native, native_library

    kernel32 = ctypes.WinDLL("kernel32")
    kernel32.FreeLibrary.argtypes = [ctypes.c_void_p]
    handle = ctypes.c_void_p(native_library.loaded()._handle)
    x, ones = np.ones((8, 64, 1000), np.float32), np.ones(64, np.float32)
    for _ in range(3):
        dx = native.batch_normalization_grad(x, x, ones, ones, ones, (0, 2), 1, num_threads=2)[0]
        kernel32.FreeLibrary(handle)
    return bool(np.isfinite(dx).all())


def crash(fault: str) -> tuple[int, str]:
    """The exit code and stderr of a process with the crash handler that runs a statement."""
    code = f"from bngrad.runtime import crash_handler; crash_handler.install(['λ']); {fault}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=False)
    return done.returncode, done.stderr


def reports_a_crash(_: Path) -> object:
    """An access violation ends bngrad with exit code 2 and one line in UTF-8."""
    code, said = crash("import faulthandler; faulthandler._read_null()")
    line = said.strip().splitlines()[-1:]
    return (code == 2 and "'bngrad λ' crashed" in said and said.endswith("(access violation)\n")) or [code, *line]


def leaves_handled_exceptions(_: Path) -> object:
    """An access violation that ctypes handles stays a Python exception."""
    code, said = crash("import ctypes; ctypes.string_at(8)")
    return (code == 1 and "OSError: exception: access violation" in said) or [code, said[-200:]]


def names_an_open_file(folder: Path) -> object:
    """A file that is open cannot be replaced: one line, and the file as it was."""
    from bngrad.errors import InputError
    from bngrad.io.writing import replacing

    path = folder / "öffen.txt"
    path.write_text("old", encoding="utf-8")
    with path.open("rb"):
        try:
            with replacing(path) as temporary:
                temporary.write_text("new", encoding="utf-8")
        except InputError as error:
            kept = path.read_text(encoding="utf-8") == "old" and list(folder.glob(".*.tmp")) == []
            return (kept and str(error).endswith("if a program has it open, close it")) or str(error)
    return "it was replaced"


def writes_long_paths(folder: Path) -> object:
    """A path of 300 characters is read and written."""
    from bngrad.io.writing import replacing

    deep = folder
    while len(str(deep)) < LONG_PATH:
        deep /= "d" * 50
    os.makedirs(deep, exist_ok=True)  # noqa: PTH103 - as a user does
    with replacing(deep / "x.txt") as temporary:
        temporary.write_text("new", encoding="utf-8")
    return (deep / "x.txt").read_text(encoding="utf-8") == "new"


CHECKS = (stays_loaded, reports_a_crash, leaves_handled_exceptions, names_an_open_file, writes_long_paths)


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    seen = {}
    for check in CHECKS:
        try:
            seen[check.__name__] = check(folder)
        except Exception as error:  # noqa: BLE001 - it is what was seen
            seen[check.__name__] = f"{type(error).__name__}: {error}"
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
