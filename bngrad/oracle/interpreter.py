"""Finds a CPython that the oracle's packages have wheels for.

Version managers put shims named `python3.12` on the search path that fail when run, so every candidate is run and
asked for its version.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from bngrad.errors import OracleError

if TYPE_CHECKING:
    from collections.abc import Iterator

SUPPORTED = ((3, 12), (3, 11))
"""The CPython versions that onnxruntime-training-cpu 1.19.2 has wheels for and bngrad supports, best first."""

_SYSTEMS = ("linux-x86_64", "macosx-", "win-amd64")
"""The systems that it has wheels for, as sysconfig names them; on Linux only with glibc."""

_WHO_ARE_YOU = "import sys; print(sys.implementation.name, *sys.version_info[:2], sys.executable, sep='\\n')"
_ANSWER_SECONDS = 20


def require_system() -> None:
    """Checks that the oracle's packages have wheels for this system.

    Raises:
        OracleError: They have none.
    """
    name = sysconfig.get_platform()
    musl = "musl" in str(sysconfig.get_config_var("SOABI"))
    if musl or not name.startswith(_SYSTEMS):
        raise OracleError(
            "the oracle (onnxruntime-training-cpu 1.19.2) exists for Linux x86-64 with glibc, macOS and Windows "
            f"x64 only; this is {name}{' with musl' if musl else ''}: validate --against reference, numeric or "
            "torch, which need no oracle"
        )


def find_interpreter() -> Path:
    """Returns the running Python if it is one of `SUPPORTED`, else the first on the search path that is.

    Raises:
        OracleError: There is none; the message names what to install.
    """
    if sys.implementation.name == "cpython" and sys.version_info[:2] in SUPPORTED and sys.executable:
        return Path(sys.executable)
    for version in SUPPORTED:
        for command in _candidates(version):
            if (executable := _ask(command, version)) is not None:
                return executable
    running = f"{sys.implementation.name} {sys.version_info[0]}.{sys.version_info[1]}"
    raise OracleError(
        f"the oracle (onnxruntime-training-cpu 1.19.2) needs CPython 3.11 or 3.12; this is {running}, and no "
        "working python3.12 or python3.11 is on PATH: install one, or run bngrad with it"
    )


def _candidates(version: tuple[int, int]) -> Iterator[list[str]]:
    """Every command of this version's name on the search path: a working one may come after a broken shim."""
    name = f"python{version[0]}.{version[1]}"
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if folder and (program := shutil.which(name, path=folder)):
            yield [program]
    if launcher := shutil.which("py"):
        yield [launcher, f"-{version[0]}.{version[1]}"]


def _ask(command: list[str], version: tuple[int, int]) -> Path | None:
    """The interpreter that a command starts, or None unless it runs and is CPython of that version."""
    try:
        answer = subprocess.run(
            [*command, "-I", "-c", _WHO_ARE_YOU],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ANSWER_SECONDS,
            check=True,
        ).stdout.splitlines()
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    if answer[:3] != ["cpython", str(version[0]), str(version[1])]:
        return None
    return Path(answer[3])
