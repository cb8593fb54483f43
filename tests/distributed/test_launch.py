"""Which processes a launcher of MPI jobs started."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bngrad.distributed import launched
from mpi_run import mpi_run

VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
ENVIRONMENTS = {
    "alone": ({}, 0),
    "hydra": ({"PMI_SIZE": "4", "PMI_RANK": "0"}, 4),
    "hydra-one": ({"PMI_SIZE": "1", "PMI_RANK": "0"}, 0),
    "open-mpi": ({"OMPI_COMM_WORLD_SIZE": "16", "PMIX_RANK": "3"}, 16),
    "srun": ({"SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "0"}, 8),
    "srun-pmi2": ({"SLURM_STEP_NUM_TASKS": "8", "PMI_SIZE": "8"}, 8),
    "mpiexec-in-one-task-of-srun": ({"SLURM_STEP_NUM_TASKS": "1", "PMI_SIZE": "8"}, 8),
    "a-batch-script": ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, 0),
    "salloc": ({"SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1"}, 0),
    "no-number": ({"PMI_SIZE": "", "OMPI_COMM_WORLD_SIZE": "two"}, 0),
}


@pytest.mark.parametrize(("environment", "expected"), ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_environments(environment, expected, monkeypatch):
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    assert launched() == expected


def test_real_launchers(mpi):
    program = "from bngrad.distributed import launched; print(launched())"
    assert [rank.out for rank in mpi_run(3, "-c", program, mpi=mpi).ranks] == ["3\n"] * 3


def test_mpi_is_not_imported():
    program = "import sys, bngrad.distributed as d; d.launched(); assert 'mpi4py' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
