"""Libraries that are missing or do not fit together are named in one line."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from bngrad.runtime.native_library import library_path
from mpi_run import job_environment, mpi_run, mpich

PROGRAM = """
import sys
from bngrad.distributed import Communicator
from bngrad.errors import BngradError
{before}
try:
    Communicator()
except BngradError as error:
    print(type(error).__name__, error, sep=": ")
"""
CASES = {
    "no-mpi4py": (
        "sys.modules['mpi4py'] = None",
        {},
        "VersionError: distributed training needs mpi4py: pip install 'bngrad[mpi]'\n",
    ),
    "no-library": (
        "",
        {"MPI4PY_LIBMPI": "/no/libmpi.so"},
        "VersionError: mpi4py cannot load an MPI library (/no/libmpi.so: cannot open shared object file: No such",
    ),
    "an-error-of-the-linker": (
        "sys.modules['mpi4py.MPI'] = None",
        {},
        "VersionError: mpi4py cannot load an MPI library (import of mpi4py.MPI halted",
    ),
    "another-launcher": (
        "",
        {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"},
        "DistributedError: the launcher started 4 processes, but MPI finds one: mpi4py uses MPICH ",
    ),
    "srun-without-mpi": (
        "",
        {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"},
        "DistributedError: the launcher started 2 processes, but MPI finds one: mpi4py uses MPICH ",
    ),
}


@pytest.mark.parametrize(("before", "environment", "expected"), CASES.values(), ids=CASES)
def test_one_line(before, environment, expected, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=job_environment(mpich(), tmp_path) | environment,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(expected), done.stdout
    assert done.stdout.count("\n") == 1


def test_the_name_of_debian_is_known(tmp_path):
    (tmp_path / "libmpich.so.12").symlink_to(library_path())  # any library
    environment = {"MPI4PY_LIBMPI": "/no/libmpi.so", "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before="")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=job_environment(mpich(), tmp_path) | environment,
    )
    assert done.stdout.endswith(
        ": the system's MPICH is there as libmpich.so.12; make a link to it named libmpi.so.12, in a folder of "
        "LD_LIBRARY_PATH\n"
    )


SYSTEM = Path("/usr/lib", f"{platform.machine()}-linux-gnu", "libmpich.so.12")


@pytest.mark.skipif(not SYSTEM.exists(), reason="needs Debian's MPICH: apt-get install mpich")
def test_mpich_of_debian_with_the_link_of_the_guide(tmp_path):
    link = tmp_path / "libmpi.so.12"
    link.symlink_to(SYSTEM)
    gathered = "[int(v) for v, in Communicator().all_gather('a', [7])]"
    program = f"from bngrad.distributed import Communicator; print({gathered})"
    environment = {"MPI4PY_LIBMPI": str(SYSTEM), "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(
        ["/usr/bin/mpiexec.mpich", "-n", "2", sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=job_environment(mpich(), tmp_path) | environment,
    )
    # The ranks write at the same time: their lines may run together.
    assert (done.returncode, done.stdout.replace("\n", "")) == (0, "[7, 7]" * 2), done.stderr


def test_alone_without_a_launcher(tmp_path):
    program = "from bngrad.distributed import Communicator; print(Communicator().all_gather('a', [7]))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=job_environment(mpich(), tmp_path),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[[7]]\n", "")


def test_a_rank_that_ends_before_mpi_init():
    program = """
import os
from bngrad.distributed import Communicator
if os.environ["PMI_RANK"] == "1":
    raise SystemExit(3)
Communicator(timeout=1)
"""
    first, second = mpi_run(2, "-c", program, options=("-disable-auto-cleanup",), timeout=60, expected=None).ranks
    assert (first.code, second.code) == (1, 3)
    assert first.error.startswith("Timeout (0:00:01)!")
    assert "distributed/mpi.py" in first.error
