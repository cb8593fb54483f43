"""The oracle's virtual environment: made when it is first needed, checked at every use.

ONNX Runtime's training build installs the same `onnxruntime` package as the stock one, so it needs an environment
of its own. That is a folder in the user's cache, named after what requirements.txt pins:

    <cache>/bngrad/oracle/              BNGRAD_ORACLE_DIR names another folder
        .lock                           held by the process that makes or removes an environment
        ort-1.19.2-<digest>/            a complete environment, or one without its marker
        ort-1.19.2-<digest>.partial-*/  an environment being made, or what a killed install has left

An environment is made under a partial name, checked, marked, and only then renamed, so that an incomplete one
never has the final name. (A renamed virtual environment works through its interpreter, all that is used of it.)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs
from filelock import FileLock, Timeout

from bngrad.errors import OracleError
from bngrad.oracle import child, packages
from bngrad.oracle.interpreter import find_interpreter, require_system

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bngrad.oracle.packages import Progress

_MARKER = "bngrad-oracle.json"
_PARTIAL = ".partial-"


@dataclass(frozen=True)
class Environment:
    """A complete environment."""

    path: Path
    python: Path
    """Its interpreter."""
    python_version: str
    build: str
    """Tells this build from others made at the same path."""


@dataclass(frozen=True)
class Status:
    """The state of the environment: `environment` if it is complete, else `problem` names the fault."""

    path: Path
    environment: Environment | None
    problem: str | None

    @property
    def ready(self) -> bool:
        """True if the environment can be used as it is."""
        return self.environment is not None

    @property
    def installed(self) -> bool:
        """True if its folder exists; `installed` and not `ready` means broken."""
        return os.access(self.path, os.F_OK)


def status() -> Status:
    """Returns the state of the environment, without changing, running or locking anything."""
    path = _base() / packages.key()
    if not os.access(path, os.F_OK):
        return Status(path, None, "not installed")
    try:
        marker = json.loads((path / _MARKER).read_text(encoding="utf-8"))
        environment = Environment(path, path / marker["python"], marker["python_version"], marker["build"])
        site_packages = path / marker["site_packages"]
        key = marker["key"]
    except (OSError, ValueError, TypeError, KeyError):
        return Status(path, None, f"its marker {_MARKER} is missing or unreadable")
    if key != packages.key():
        return Status(path, None, f"its marker has {key}")
    # The base interpreter that the environment links to may have been removed since.
    if not os.access(environment.python, os.X_OK) or not environment.python.is_file():
        return Status(path, None, f"its interpreter {environment.python} is missing or not executable")
    problem = packages.damage(site_packages)
    return Status(path, environment if problem is None else None, problem)


def cache_key() -> str:
    """Returns a key for caching the environment: it changes if an environment made elsewhere would not be usable.

    The environment links to the base interpreter that it was made with, so the key has its release and its folder.

    Raises:
        OracleError: There is no Python that the packages support.
    """
    facts = "import sys; print(sys.version.split()[0]); print(sys.base_prefix)"
    release, folder = _run([find_interpreter(), "-I", "-c", facts], "ask Python for its release")
    return f"{packages.key()}-python{release}-{hashlib.sha256(folder.encode()).hexdigest()[:6]}"


def ensure(progress: Progress | None = None) -> Environment:
    """Returns the environment, and makes it if it is missing or broken; otherwise fast, and without network.

    Raises:
        OracleError: It cannot be made.
    """
    return status().environment or install(progress)


def install(progress: Progress | None = None, *, replace: Environment | None = None) -> Environment:
    """Makes the environment unless it is complete; waits for a process that is already making it.

    Args:
        progress: Called with the stages.
        replace: An environment whose files are complete and whose worker does not start. It is created anew,
            unless another process has already done that.

    Raises:
        OracleError: It cannot be created; no files of it remain, and a broken one stays as it was.
    """
    require_system()
    report = progress or _silent
    with _locked(report):
        existing = status().environment
        if existing is not None and (replace is None or existing.build != replace.build):
            return existing
        target = _base() / packages.key()
        _remove_leftovers()
        with _scratch(target) as partial:
            _build(partial, report)
            _put_in_place(partial, target)
        _remove_leftovers()  # again: the child of a killed install may have written on
    installed = status()
    if installed.environment is None:
        raise OracleError(f"the oracle's new environment {installed.path} is not usable: {installed.problem}")
    report("ready", 1.0)
    return installed.environment


def remove() -> list[Path]:
    """Removes every environment of the oracle, also those of other bngrad versions; returns their paths."""
    if not _base().is_dir():
        return []
    with _locked(_silent):
        _remove_leftovers()
        ours = [
            path for path in _base().glob("ort-*") if (path / _MARKER).is_file() or path.name == packages.key()
        ]
        for path in ours:
            _discard(path)
    return ours


def _base() -> Path:
    """The folder that holds the environments."""
    if chosen := os.environ.get("BNGRAD_ORACLE_DIR"):
        return Path(chosen).expanduser().absolute()
    return platformdirs.user_cache_path("bngrad") / "oracle"


def _silent(stage: str, fraction: float | None) -> None:
    """The progress of an installation that reports nothing."""


def _locked(report: Progress) -> contextlib.AbstractContextManager[object]:
    """Lets one process at a time change the base folder; a context manager."""
    base = _base()
    try:
        base.mkdir(parents=True, exist_ok=True)
        # FileLock waits forever where it cannot create the file, as it does for a held lock.
        (base / ".lock").touch()
        lock = FileLock(base / ".lock")
        try:
            return lock.acquire(timeout=0.05)
        except Timeout:
            report("waiting for another process that installs the oracle", None)
            return lock.acquire()
    except OSError as error:
        raise OracleError(
            f"cannot write to the oracle's folder {base}: {error.strerror or error}; name another one with "
            "BNGRAD_ORACLE_DIR"
        ) from error


@contextlib.contextmanager
def _scratch(target: Path) -> Iterator[Path]:
    """A folder to build in, beside the final one so that a rename suffices; removed at the end in any case."""
    partial = _unused(target)
    try:  # before there is such a folder: Ctrl-C may come as soon as there is
        partial.mkdir(mode=0o700)
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _build(partial: Path, report: Progress) -> None:
    """Makes an environment in an empty folder, installs its packages, checks and marks it."""
    report("creating environment", 0.0)
    base_python = find_interpreter()
    # Without pip: `packages` uses another one, and Debian's Python cannot install it.
    _run([base_python, "-I", "-m", "venv", "--without-pip", partial], "create a virtual environment")
    python = partial / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    packages.install_packages(
        python, lambda stage, done: report(stage, None if done is None else 0.1 + 0.7 * done)
    )
    report("checking", 0.8)
    from bngrad.oracle.probe import check_gradient  # noqa: PLC0415 - imports onnx, which `status` has no need of

    check_gradient(python)
    facts = "import sys, sysconfig; print(sys.version.split()[0]); print(sysconfig.get_path('purelib'))"
    version, site_packages = _run([python, "-I", "-c", facts], "ask the environment's Python for its paths")
    marker = {
        "key": packages.key(),
        "pins": packages.pins(),
        "python": python.relative_to(partial).as_posix(),
        "python_version": version,
        "site_packages": os.path.relpath(site_packages, partial.resolve()),
        "build": uuid.uuid4().hex,
    }
    (partial / _MARKER).write_text(json.dumps(marker, indent=2) + "\n", encoding="utf-8")


def _put_in_place(partial: Path, target: Path) -> None:
    """Renames the finished environment, in the place of a broken one."""
    try:
        if target.exists():
            _discard(target)
        partial.rename(target)
    except OSError as error:
        raise OracleError(
            f"cannot put the oracle's environment at {target}: {error.strerror or error}; "
            "end the programs that use it, then run `bngrad oracle install`"
        ) from error


def _discard(path: Path) -> None:
    """Removes an environment; renames it first, so that its name never belongs to an incomplete one."""
    doomed = _unused(path)
    try:
        path.rename(doomed)
    except OSError as error:
        raise OracleError(f"cannot remove {path}: {error.strerror or error}") from error
    shutil.rmtree(doomed, ignore_errors=True)


def _unused(path: Path) -> Path:
    """An unused partial name for an environment."""
    return path.with_name(f"{path.name}{_PARTIAL}{uuid.uuid4().hex[:8]}")


def _remove_leftovers() -> None:
    """Removes what killed installs have left; under the lock, so that no other install is running."""
    for path in _base().glob(f"ort-*{_PARTIAL}*"):
        shutil.rmtree(path, ignore_errors=True)


def _run(command: list[str | Path], what: str) -> list[str]:
    """Runs a command of the installation, and returns the lines that it printed."""
    try:
        done = child.run(command, errors="replace")
    except OSError as error:
        raise OracleError(f"cannot {what}: {command[0]}: {error.strerror or error}") from error
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise OracleError(f"cannot {what} with {command[0]}: {last}")
    return done.stdout.splitlines()
