"""Bytes between the ranks of an MPI communicator, with a time-out.

Only nonblocking operations can have one: each is started, and tested until it is complete. After one that did not
complete no other can start: MPI cannot take it back, and the ranks would no longer agree on the order.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bngrad.distributed import mpi
from bngrad.errors import DistributedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpi4py import MPI

ALL_GATHER: Final = 0
"""``BNGRAD_ALL_GATHER``: every rank sends a block of bytes to all."""
ALL_TO_ALL: Final = 1
"""``BNGRAD_ALL_TO_ALL``: every rank sends a block of bytes to each."""

_PIECE = 1 << 30
"""Bytes of a block in one operation: before MPI 4, counts have 31 bits."""
_SPINS = 20
_YIELD_SECONDS = 2e-4
_MAX_SLEEP_SECONDS = 1e-3
_SLEEP_SHARE = 1 / 16
"""Sleeps last this part of the time that was waited, so they make no wait much longer."""


class Transport:
    """Operations on a duplicate of a communicator, whose messages cannot meet those of its other users.

    Attributes:
        rank: The number of this process in the communicator.
        size: The number of ranks.
        timeout: The seconds until all ranks must have completed an operation.
        failure: The error of the operation that did not complete, or None.
    """

    def __init__(self, comm: MPI.Intracomm, timeout: float, *, piece: int = _PIECE) -> None:
        self._mpi = mpi.load()
        self._process = os.getpid()
        self._piece = piece
        self.rank: int = comm.rank
        self.size: int = comm.size
        self.timeout = timeout
        self.failure: BaseException | None = None
        self._interrupt: BaseException | None = None
        self._comm = self._duplicate(comm)
        if mpi.finalizes():
            # Of its own: a rank may end while others are in an operation.
            self._at_end = self._duplicate(comm)
            atexit.register(self._meet_at_end)

    def move(self, operation: int, send: int, receive: int, size: int) -> None:
        """Exchanges blocks of bytes.

        Args:
            operation: `ALL_GATHER` or `ALL_TO_ALL`.
            send: The address of the block for all ranks, or of the blocks for each.
            receive: The address of the blocks of each rank.
            size: The bytes of a block.

        Raises:
            DistributedError: A rank did not answer in time, or MPI reported an error.
        """
        comm = self._comm
        start = comm.Iallgather if operation == ALL_GATHER else comm.Ialltoall
        for begin in range(0, size, self._piece):
            piece = _Piece(self._mpi, min(self._piece, size - begin), size)
            self._run(partial(start, piece.at(send + begin), piece.at(receive + begin)))
            piece.free()

    def broadcast(self, address: int, size: int) -> None:
        """Copies bytes of rank 0 to the other ranks.

        Raises:
            DistributedError: A rank did not answer in time, or MPI reported an error.
        """
        for begin in range(0, size, self._piece):
            count = min(self._piece, size - begin)
            piece = _Piece(self._mpi, count, count)
            self._run(partial(self._comm.Ibcast, piece.at(address + begin)))

    def give_up(self, error: BaseException) -> None:
        """Refuses all further operations, because of an error in one."""
        mpi.end_without_finalize()
        self.failure = error
        self._interrupt = None if isinstance(error, Exception) else error

    def take_interrupt(self) -> BaseException | None:
        """Returns, once, the exception of a signal, such as Ctrl-C, that ended an operation."""
        taken, self._interrupt = self._interrupt, None
        return taken

    def _duplicate(self, comm: MPI.Intracomm) -> MPI.Intracomm:
        duplicates: list[MPI.Intracomm] = []

        def start() -> MPI.Request:
            duplicate, request = comm.Idup()
            duplicates.append(duplicate)
            return request

        self._run(start)
        # An error of a communicator whose user wants it to abort the job is an exception here.
        duplicates[0].Set_errhandler(self._mpi.ERRORS_RETURN)
        return duplicates[0]

    def _meet_at_end(self) -> None:
        """Waits for the other ranks, because MPI_Finalize has no time-out; without them it is not called."""
        if mpi.ends_normally() and self._process == os.getpid():
            with contextlib.suppress(BaseException):  # also Ctrl-C
                self._run(self._at_end.Ibarrier)

    def _run(self, start: Callable[[], MPI.Request]) -> None:
        """Starts an operation and waits until it is complete."""
        if self.failure is not None:
            reason = str(self.failure) or type(self.failure).__name__
            raise DistributedError(f"rank {self.rank} cannot continue after an earlier error: {reason}")
        if os.getpid() != self._process:
            raise DistributedError("a fork of a rank cannot communicate; expected the process that started MPI")
        mpi.check_thread()
        try:
            self._wait(start())
        except BaseException as error:
            if isinstance(error, self._mpi.Exception):
                reason = " ".join(str(error).split())
                error = DistributedError(
                    f"rank {self.rank}: an error of MPI, often because a rank ended: {reason}"
                )
            self.give_up(error)
            raise error from None

    def _wait(self, request: MPI.Request) -> None:
        for _ in range(_SPINS):
            if request.Test():
                return
        begin = time.monotonic()
        while not request.Test():
            waited = time.monotonic() - begin
            if waited > self.timeout:
                raise DistributedError(
                    f"rank {self.rank} waited {self.timeout:g} s for another rank, which ended, hangs, or is "
                    "slower than the time-out allows"
                )
            if waited < _YIELD_SECONDS:
                _yield()
            else:
                time.sleep(min(waited * _SLEEP_SHARE, _MAX_SLEEP_SECONDS))


class _Piece:
    """A part of each block: `count` of its bytes, where blocks lie `size` bytes apart."""

    def __init__(self, module: Any, count: int, size: int) -> None:  # noqa: ANN401 - a module
        self._mpi, self._bytes = module, size
        self._count, self._type = count, module.BYTE
        if count != size:
            contiguous = module.BYTE.Create_contiguous(count)
            self._count, self._type = 1, contiguous.Create_resized(0, size).Commit()
            contiguous.Free()

    def at(self, address: int) -> list[Any]:
        """Returns mpi4py's form of a buffer."""
        return [self._mpi.buffer.fromaddress(address, self._bytes), self._count, self._type]

    def free(self) -> None:
        if self._type != self._mpi.BYTE:
            self._type.Free()


def _yield() -> None:
    if hasattr(os, "sched_yield"):
        os.sched_yield()
    else:
        time.sleep(0)
