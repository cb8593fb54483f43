"""Installs the pinned packages into an environment, and checks that they are complete.

The pip of the running Python installs into the other environment (`pip --python`): it follows the user's settings
and needs no bootstrap. Where the running Python has no pip, `ensurepip` makes one in the environment.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

from bngrad.errors import OracleError
from bngrad.oracle import child

Progress = Callable[[str, float | None], None]
"""Called with the stage, and the fraction of the work that is done (0 to 1; None where unknown)."""

REQUIREMENTS = Path(__file__).with_name("requirements.txt")

_PIN = re.compile(r"^([A-Za-z0-9_.-]+)==([^ \\]+)", re.MULTILINE)
_FETCHING = re.compile(r"^(?:Collecting ([\w.-]+)==([\w.]+)|Processing .*?([\w.]+)-([\w.]+)-[^/\\]*\.whl)")
_PIP_LEAVES_ALONE = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_CONSTRAINT", "PIP_PYTHON", "PIP_NO_BINARY")


def pins() -> dict[str, str]:
    """The version of each package in the requirements file."""
    return dict(_PIN.findall(REQUIREMENTS.read_text(encoding="utf-8")))


def key() -> str:
    """The folder name of an environment with these pins on this platform."""
    digest = hashlib.sha256(REQUIREMENTS.read_bytes() + sysconfig.get_platform().encode()).hexdigest()
    return f"ort-{pins()['onnxruntime-training-cpu']}-{digest[:10]}"


def _clean_environ() -> dict[str, str]:
    """The environment variables without Python's own, which are meant for the running interpreter."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def install_packages(python: Path, progress: Progress) -> None:
    """Installs the pins for the interpreter `python`; `progress` gets fractions from 0 to 1.

    Raises:
        OracleError: pip failed; the message has its error line.
    """
    # The packages' other dependencies are not needed (requirements.txt has the reason), sources are never built,
    # and bytecode is left to the first import: compiling 1,500 files that are never imported takes seconds.
    options = ["--no-deps", "--no-compile", "--only-binary=:all:", "--require-hashes", "--no-input"]
    command = [*_pip(python), "install", *options, "--progress-bar=off", f"--requirement={REQUIREMENTS}"]
    environ = {name: value for name, value in _clean_environ().items() if name not in _PIP_LEAVES_ALONE}
    environ |= {"PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0", "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}
    errors = _follow(command, environ, progress)
    if errors is not None:
        raise OracleError(
            f"pip cannot install the oracle's packages ({', '.join('=='.join(pin) for pin in pins().items())}): "
            f"{errors}; check the network and pip's index settings, then run `bngrad oracle install`"
        )


def _follow(command: list[str], environ: dict[str, str], progress: Progress) -> str | None:
    """Runs pip and reports its stages; returns its error line, None on success."""
    total = len(pins())
    begun = 0
    failure = last = "no message"
    with child.started(
        command,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as pip:
        for line in pip.stdout or ():
            if match := _FETCHING.match(line):
                name, version = (part for part in match.groups() if part)
                progress(f"fetching {name.replace('_', '-')} {version}", begun / (total + 1))
                begun += 1
            elif line.startswith("Installing collected packages"):
                progress("installing", total / (total + 1))
            elif line.startswith("ERROR:"):
                failure = line.removeprefix("ERROR:").strip()
            last = line.strip() or last
    if pip.returncode == 0:
        return None
    return failure if failure != "no message" else last


def _pip(python: Path) -> list[str]:
    """The command of a pip that installs for `python`."""
    if importlib.util.find_spec("pip") is not None:
        # -P: a folder named pip in the current directory must not be taken for it.
        return [sys.executable, "-P", "-m", "pip", f"--python={python}"]
    done = child.run([python, "-I", "-m", "ensurepip", "--default-pip"], env=_clean_environ())
    if done.returncode != 0:
        raise OracleError(
            f"no pip to install the oracle's packages: {sys.executable} has none, and ensurepip makes none for "
            f"{python}: run `python -m ensurepip`, or install your system's pip package"
        )
    return [str(python), "-I", "-m", "pip"]


def damage(site_packages: Path) -> str | None:
    """Returns the fault of the installed packages; None if there is none.

    Compares the size of every file with the package's RECORD, which is fast. Damage that keeps a file's size shows
    when the worker starts.
    """
    for name, version in pins().items():
        record = site_packages / f"{name.replace('-', '_')}-{version}.dist-info" / "RECORD"
        try:
            rows = list(csv.reader(record.read_text(encoding="utf-8").splitlines()))
        except (OSError, UnicodeDecodeError, csv.Error):
            return f"{name} {version} is not installed"
        for path, _, size in (row for row in rows if len(row) == 3):
            if size and not path.startswith(".."):
                try:
                    actual = (site_packages / path).stat().st_size
                except OSError:
                    return f"{path} is missing"
                if str(actual) != size:
                    return f"{path} has {actual} bytes instead of {size}"
    return None
