"""The harness of the tests with MPI: what each rank prints and how it ends is told apart."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest

from mpi_run import mpi_run

PROGRAM = """
import sys
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
print("rank", rank, "of", MPI.COMM_WORLD.size)
print("noise", rank, file=sys.stderr)
MPI.Finalize()
sys.exit(3 * rank)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="MPICH has no wheel for Windows")
def test_mpi_is_installed():
    """Without it, all tests of this folder would be skipped."""
    assert find_spec("mpi4py") is not None


def test_each_rank_has_its_output_and_its_exit_code():
    job = mpi_run(2, "-c", PROGRAM, expected=None)
    assert [tuple(rank) for rank in job.ranks] == [
        (0, "rank 0 of 2\n", "noise 0\n"),
        (3, "rank 1 of 2\n", "noise 1\n"),
    ]
    assert job.code == 3


FAULTS = {
    "a-rank-that-hangs": ("import time; time.sleep(60)", 1, "was not over after 1 s"),
    "another-exit-code": ("import sys; sys.exit(1)", 60, "code=1"),
}


@pytest.mark.parametrize(("program", "timeout", "message"), FAULTS.values(), ids=FAULTS)
def test_a_job_that_fails(program, timeout, message):
    with pytest.raises((pytest.fail.Exception, AssertionError), match=message):
        mpi_run(2, "-c", program, timeout=timeout)
