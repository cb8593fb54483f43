"""The methods of a communicator, and what it refuses, on real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpi_run import mpi_run

PROGRAMS = Path(__file__).parent / "rank_programs.py"


@pytest.mark.parametrize(
    ("program", "ranks"),
    [
        ("values", 1),
        ("values", 2),
        pytest.param("values", 5, marks=pytest.mark.long),
        ("refusals", 2),
        ("sub_communicators", 4),
        ("pieces", 3),
        ("fork", 2),
        ("another_thread", 2),
        ("without_threads", 1),
        ("not_initialized", 2),
        ("finalized", 1),
        ("two_operations", 2),
        ("errors_of_onnxruntime", 1),
    ],
)
def test_programs(program, ranks, mpi):
    job = mpi_run(ranks, PROGRAMS, program, mpi=mpi)
    assert (job.code, [rank.error for rank in job.ranks]) == (0, [""] * ranks)
