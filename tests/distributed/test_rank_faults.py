"""Ranks that fail: the others end with one line, within the time-out."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from bngrad.runtime import native_library
from mpi_run import mpi_run

PROGRAMS = Path(__file__).parent / "rank_programs.py"
TIMEOUT = 2
OTHERS = (0, 2)
"""The ranks of three without the fault."""
LIBRARY = f"bngrad {native_library.version()}"
STEP = f"AllGather 'step 2' of 8 bytes, {LIBRARY}"
TIMED_OUT = (
    f"error: {STEP}: rank {{rank}} waited {TIMEOUT} s for another rank, which ended, hangs, or is slower than the "
    "time-out allows\n"
)
MISMATCH = (
    f"error: ranks 0 and 1 do not match: rank 0 is at {STEP}, rank 1 at {{other}}; expected the same model, "
    "bngrad and ONNX Runtime on all ranks\n"
)


class Fault(NamedTuple):
    """A program of the rank with the fault, and how the ranks end."""

    program: str
    line: str
    """The line that the other ranks print; empty if they go on to the end."""
    code: int | tuple[int, ...]
    """The exit code of the rank with the fault."""
    own: str | None = ""
    """The line that it prints; None if that is not checked."""


long = pytest.mark.long
ABORTED = 195
"""Open MPI ends ranks that are told of the end of others."""
FAULTS = [
    Fault("killed", TIMED_OUT, 128 + 9, None),
    pytest.param(Fault("killed_inside", TIMED_OUT, 128 + 9, None), marks=long),
    pytest.param(Fault("killed_waiting", TIMED_OUT, 128 + 14, None), marks=long),
    pytest.param(Fault("interrupted", TIMED_OUT, 130), marks=long),
    pytest.param(Fault("slow", TIMED_OUT, (2, ABORTED), None), marks=long),
    Fault("slower_than_others", "", 0),
    Fault("ends_early", TIMED_OUT, 0),
    Fault("fails", "error: rank 1 failed: ValueError: the data are gone\n", 2),
    Fault("fails_with_a_known_error", "error: rank 1 failed: images have shape [3]; expected [4]\n", 2),
    Fault("raises", "error: rank 1 failed: ValueError: the data are gone\n", 1, None),
    Fault("another_key", MISMATCH.format(other=f"AllGather 'another step' of 8 bytes, {LIBRARY}"), 2, MISMATCH),
    Fault("another_size", MISMATCH.format(other=f"AllGather 'step 2' of 24 bytes, {LIBRARY}"), 2, MISMATCH),
    Fault("another_library", MISMATCH.format(other="AllGather 'step 2' of 8 bytes, bngrad 99.0.0"), 0),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.program)
def test_faults(fault, mpi):
    job = mpi_run(
        3, PROGRAMS, fault.program, TIMEOUT, mpi=mpi, options=mpi.keep_survivors, timeout=30, expected=None
    )
    for rank in OTHERS:
        assert job.ranks[rank] == (2 if fault.line else 0, "", fault.line.format(rank=rank)), job
    codes = fault.code if isinstance(fault.code, tuple) else (fault.code,)
    assert job.ranks[1].code in codes, job
    if fault.own is not None:
        assert job.ranks[1].error == (fault.line if fault.own else ""), job


@pytest.mark.parametrize("program", ["killed", "slow", "ends_early", "fails", "raises"])
@pytest.mark.long
def test_the_launcher_ends_the_others_by_default(program, mpi):
    """Nothing hangs, and the job fails."""
    job = mpi_run(3, PROGRAMS, program, TIMEOUT, mpi=mpi, timeout=30, expected=None)
    assert job.code != 0


@pytest.mark.parametrize("program", ["interrupted_in_the_library", "interrupted_before_the_function"])
def test_interrupted_in_the_library(program, mpi):
    job = mpi_run(
        2,
        PROGRAMS,
        program,
        TIMEOUT,
        mpi=mpi,
        options=mpi.keep_survivors,
        timeout=30,
        expected=None,
    )
    assert job.ranks[1] == (130, "", ""), job
    assert job.ranks[0].code in (2, ABORTED), job


@pytest.mark.long
def test_a_program_that_imported_mpi4py(mpi):
    """mpi4py ends MPI: the job is aborted."""
    job = mpi_run(3, PROGRAMS, "caller_ends_mpi", TIMEOUT, mpi=mpi, timeout=30, expected=None)
    assert job.code == 2
    assert any(job.ranks[rank].error.startswith(TIMED_OUT.format(rank=rank)) for rank in OTHERS), job


def test_a_rank_that_comes_too_late_to_start(mpi):
    job = mpi_run(2, PROGRAMS, "late_start", 1, mpi=mpi, options=mpi.keep_survivors, timeout=30, expected=None)
    assert job.ranks[0].error.endswith(
        "DistributedError: rank 0 waited 1 s for another rank, which ended, hangs, or is slower than the time-out "
        "allows\n"
    ), job
