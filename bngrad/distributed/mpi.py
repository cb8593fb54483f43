"""MPI through mpi4py: its import, its checks, and the end of a process in which an operation did not complete.

MPI_Finalize waits for the other ranks, also for those that have ended. So a process ends without it after an
operation that did not complete. If the caller imported mpi4py before, mpi4py calls MPI_Finalize by itself; then it
aborts the job instead, with exit code 2, as `python -m mpi4py` does.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import os
import sys
import threading
import warnings
from functools import cache
from typing import TYPE_CHECKING

from bngrad.distributed.launch import launched
from bngrad.errors import DistributedError, VersionError

if TYPE_CHECKING:
    from types import ModuleType


_MPICH_OF_DEBIAN = "libmpich.so.12"
"""The name of libmpi.so.12, which mpi4py's wheel asks for, on Debian and Ubuntu."""


class _State:
    complete = True
    """True if all operations of this process completed."""
    finalizes = False
    """True if this module calls MPI_Finalize, not mpi4py."""


_state = _State()


def load(timeout: float = threading.TIMEOUT_MAX) -> ModuleType:
    """Returns the module ``mpi4py.MPI``, with MPI initialized.

    Args:
        timeout: The seconds within which all ranks must initialize MPI. If one does not, this process ends with
            exit code 1 and a traceback: no exception can leave MPI_Init.

    Raises:
        VersionError: mpi4py or an MPI library is missing.
        DistributedError: MPI is not initialized, does not support threads, or is not that of the launcher.
    """
    MPI = _import(timeout)
    if not MPI.Is_initialized() or MPI.Is_finalized():
        state = "finalized" if MPI.Is_initialized() else "not initialized"
        raise DistributedError(f"MPI is {state}; expected a call of MPI.Init_thread() before, or none at all")
    check_thread()
    if MPI.COMM_WORLD.size == 1 and (processes := launched()):
        vendor = " ".join([MPI.get_vendor()[0], *map(str, MPI.get_vendor()[1])])
        raise DistributedError(
            f"the launcher started {processes} processes, but MPI finds one: mpi4py uses {vendor}; start them "
            "with its mpiexec, or srun with the --mpi option for it"
        )
    return MPI


def _import(timeout: float = threading.TIMEOUT_MAX) -> ModuleType:
    if "mpi4py.MPI" in sys.modules:
        return _initialized()
    # In C: mpi4py holds the interpreter's lock in MPI_Init.
    faulthandler.dump_traceback_later(min(timeout, threading.TIMEOUT_MAX), exit=True, file=2)
    try:
        return _initialized()
    finally:
        faulthandler.cancel_dump_traceback_later()


@cache
def _initialized() -> ModuleType:
    imported = "mpi4py.MPI" in sys.modules
    try:
        import mpi4py  # noqa: PLC0415 - optional
    except ImportError:
        raise VersionError("distributed training needs mpi4py: pip install 'bngrad[mpi]'") from None
    if not imported and mpi4py.rc.finalize is None:
        mpi4py.rc.finalize = False
        _state.finalizes = True
        atexit.register(_finalize, os.getpid())
    try:
        with warnings.catch_warnings():
            # Of a launcher of another MPI, which is an error here.
            warnings.filterwarnings("ignore", "suspicious MPI execution environment")
            from mpi4py import MPI  # noqa: PLC0415 - initializes MPI
    except (ImportError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[-1]
        remedy = "install one, such as with pip install mpich, or load the cluster's module"
        if _is_there(_MPICH_OF_DEBIAN):
            remedy = (
                f"the system's MPICH is there as {_MPICH_OF_DEBIAN}; make a link to it named libmpi.so.12, in a "
                "folder of LD_LIBRARY_PATH"
            )
        raise VersionError(f"mpi4py cannot load an MPI library ({reason}): {remedy}") from None
    return MPI


def _is_there(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def check_thread() -> None:
    """Checks that MPI may be called on this thread.

    Raises:
        DistributedError: It may not: MPI does not support threads, or this is not the thread that initialized it.
    """
    MPI = _import()
    level = MPI.Query_thread()
    if level < MPI.THREAD_FUNNELED:
        raise DistributedError(
            "MPI was initialized with MPI_THREAD_SINGLE; expected MPI_THREAD_FUNNELED or more: ONNX Runtime has "
            "threads"
        )
    if level == MPI.THREAD_FUNNELED and not MPI.Is_thread_main():
        raise DistributedError(
            "MPI was initialized with MPI_THREAD_FUNNELED by another thread than this; run all steps on the "
            "thread that initialized MPI, with sequential execution"
        )


def finalizes() -> bool:
    """Tests whether this package calls MPI_Finalize when the process ends, and not mpi4py or the program."""
    return _state.finalizes


def ends_normally() -> bool:
    """Tests whether all operations completed and no exception was left uncaught."""
    return _state.complete and not hasattr(sys, "last_type")


def end_without_finalize() -> None:
    """Makes this process end without MPI_Finalize, because an operation did not complete."""
    MPI = _import()
    _state.complete = False
    if sys.modules["mpi4py"].rc.finalize is not False:
        MPI._set_abort_status(2)  # noqa: SLF001 - it has no public name


def _finalize(process: int) -> None:
    """Calls MPI_Finalize at the end of a process, if the other ranks can be expected to do so, too."""
    MPI = sys.modules.get("mpi4py.MPI")
    if MPI is None or process != os.getpid() or not ends_normally():
        return
    if MPI.Is_initialized() and not MPI.Is_finalized():
        MPI.Finalize()
