"""Training over the processes of an MPI job; needs the extra ``mpi``: ``pip install 'bngrad[mpi]'``."""

from __future__ import annotations

from bngrad.distributed.communicator import Communicator
from bngrad.distributed.launch import launched

__all__ = ["Communicator", "launched"]
