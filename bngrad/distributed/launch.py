"""Detects without MPI that a launcher of MPI jobs started this process."""

from __future__ import annotations

import os

_VARIABLES = (
    "PMI_SIZE",  # mpiexec of MPICH, Intel MPI, MS-MPI and Cray; srun --mpi=pmi2
    "OMPI_COMM_WORLD_SIZE",  # mpiexec of Open MPI
    "SLURM_STEP_NUM_TASKS",  # srun; SLURM_NTASKS is also set in an allocation where nothing was launched
)


def launched() -> int:
    """Returns the number of processes that mpiexec or srun started together with this one; 0 if it is alone."""
    sizes = [os.environ.get(variable, "") for variable in _VARIABLES]
    largest = max((int(size) for size in sizes if size.isdecimal()), default=0)
    return largest if largest > 1 else 0
