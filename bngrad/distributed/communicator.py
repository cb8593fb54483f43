"""The ranks of a distributed run, and their exchanges outside the collectives of a graph."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import math
import re
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from bngrad.arguments import require_number
from bngrad.distributed import collective, mpi
from bngrad.distributed.transport import Transport
from bngrad.errors import DistributedError, InputError, LibraryError
from bngrad.runtime import native_library

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from mpi4py import MPI
    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[Any]

_NODE = re.compile(r"running (?:AllGather|AllReduce) node\. .*?Status Message: (.*)", re.DOTALL)
"""An error of ONNX Runtime in a collective of a graph."""
_CALL = re.compile(r"^bngrad_all_(?:gather|reduce): (.*)", re.DOTALL)
"""An error of the library in a collective."""


class Communicator:
    """The ranks of a distributed run over MPI.

    All ranks make one, and call the same methods in the same order with the same keys. A method fails on all of
    them if they do not match, and if a rank fails or does not answer within the time-out. After a time-out or an
    error of MPI no method can be used, and the process ends without MPI_Finalize. It must not call MPI by itself
    then, either: MPI may still write to the arrays of the operation.

    In a ``with`` statement the collectives of the op library (AllGather, AllReduce) go over these ranks, and an
    exception on one rank makes the next operation of the others fail.

    Args:
        comm: An intracommunicator of mpi4py, which is duplicated; ``MPI.COMM_WORLD`` by default.
        timeout: The seconds within which all ranks must take part in an operation.

    Attributes:
        rank: The number of this process, from 0.
        size: The number of ranks.

    Raises:
        InputError: An argument is invalid.
        VersionError: mpi4py or an MPI library is missing.
        DistributedError: MPI cannot be used, or a rank did not take part in time.
    """

    rank: int
    size: int

    def __init__(self, comm: MPI.Intracomm | None = None, *, timeout: float = 300.0) -> None:
        seconds = require_number("timeout", timeout, "a number of seconds")
        if not 0 < seconds < math.inf:
            raise InputError(f"timeout is {timeout!r}; expected a positive number of seconds")
        module = mpi.load(seconds)
        if comm is None:
            comm = module.COMM_WORLD
        if not isinstance(comm, module.Intracomm) or comm == module.COMM_NULL:
            raise InputError(f"comm is {comm!r}; expected an intracommunicator of mpi4py, such as MPI.COMM_WORLD")
        self._transport = Transport(comm, seconds)
        self.rank = self._transport.rank
        self.size = self._transport.size

    def __enter__(self) -> Self:
        self.attach()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if error is not None and not (isinstance(error, SystemExit) and not error.code):
            self.fail(error)
        self.detach()

    def attach(self) -> None:
        """Makes the collectives of the op library use these ranks. The first use of another method does so, too.

        Sessions must be made afterwards: ONNX Runtime may run parts of a graph when it makes a session.

        Raises:
            DistributedError: Another communicator is attached.
            LibraryError: The native library is missing or too old.
        """
        collective.attach(self._transport)

    def detach(self) -> None:
        """Sets the collectives of the op library back to a single rank."""
        collective.detach(self._transport)

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """A block in which errors of ONNX Runtime and the op library in a collective become those of the ranks.

        Raises:
            DistributedError: The ranks do not match, one failed, or one did not answer in time.
            KeyboardInterrupt: Ctrl-C was pressed while ONNX Runtime waited for the other ranks.
        """
        try:
            with collective.interrupts(self._transport):
                yield
        except Exception as error:
            if (interrupt := self._transport.take_interrupt()) is not None:
                raise interrupt from None
            if match := (_CALL if isinstance(error, LibraryError) else _NODE).search(str(error)):
                raise DistributedError(" ".join(match[1].split())) from None
            raise

    def all_gather(self, key: str, value: ArrayLike) -> Array:
        """Returns the values of all ranks, stacked in their order.

        Args:
            key: Names the operation in messages; the same on all ranks.
            value: An array of any dtype of fixed size, with as many bytes on all ranks.

        Raises:
            InputError: The dtype has no fixed size, or the key is empty.
            DistributedError: The ranks do not match, one failed, or one did not answer in time.
        """
        array = np.asarray(value, order="C")
        if array.dtype.hasobject:
            raise InputError(f"{key}: the value has dtype {array.dtype}; expected numbers, or text of fixed size")
        gathered = np.empty((self.size, *array.shape), array.dtype)
        pointers = [ctypes.c_void_p(part.ctypes.data) for part in (array, gathered)]
        self.attach()
        with self.errors():
            native_library.call("bngrad_all_gather", key.encode(), ctypes.c_int64(array.nbytes), *pointers)
        return gathered

    def gather_text(self, key: str, text: str) -> list[str]:
        """Returns the texts of all ranks, in their order.

        Args:
            key: Names the operation in messages; the same on all ranks.
            text: Of any length.

        Raises:
            DistributedError: The ranks do not match, one failed, or one did not answer in time.
        """
        own = np.frombuffer(text.encode(), np.uint8)
        sizes = self.all_gather(f"{key}/sizes", np.int64(own.size))
        padded = np.zeros(sizes.max(), np.uint8)
        padded[: own.size] = own
        rows = self.all_gather(key, padded)
        return [row[:size].tobytes().decode() for row, size in zip(rows, sizes, strict=True)]

    def broadcast(self, key: str, arrays: dict[str, Array]) -> dict[str, Array]:
        """Returns the arrays of rank 0.

        Args:
            key: Names the operation in messages; the same on all ranks.
            arrays: By name. The names, dtypes and shapes are the same on all ranks.

        Raises:
            DistributedError: The ranks do not match, one failed, or one did not answer in time.
        """
        names = sorted(arrays)
        self._require_same(key, [f"{name} {arrays[name].dtype.name}{list(arrays[name].shape)}" for name in names])
        results = {}
        for name in names:
            results[name] = array = np.array(arrays[name], order="C")
            self._transport.broadcast(array.ctypes.data, array.nbytes)
        return {name: results[name] for name in arrays}

    def agree(self, key: str, flag: bool) -> bool:
        """Returns whether a flag is true on any rank.

        Args:
            key: Names the operation in messages; the same on all ranks.
            flag: The flag of this rank.

        Raises:
            DistributedError: The ranks do not match, one failed, or one did not answer in time.
        """
        return bool(self.all_gather(key, np.bool_(flag)).any())

    def fail(self, error: BaseException) -> None:
        """Makes the next operation of the other ranks fail with an error of this one. Never raises an error.

        Waits until all ranks know, at most for the time-out. Does nothing if the last operation failed: the other
        ranks know then, or cannot be told.

        Args:
            error: The error. Its type goes into the message unless it is of bngrad.
        """
        text = " ".join(str(error).split())
        if not type(error).__module__.startswith("bngrad."):
            text = f"{type(error).__name__}: {text}" if text else type(error).__name__
        with contextlib.suppress(Exception):
            self.attach()
            native_library.call("bngrad_fail_collective", text.encode())

    def _require_same(self, key: str, lines: list[str]) -> None:
        digest = hashlib.sha256("\n".join(lines).encode()).digest()
        digests = self.all_gather(key, np.frombuffer(digest, np.uint8))
        if (digests == digests[0]).all():
            return
        texts = [text.split("\n") for text in self.gather_text(f"{key}/names", "\n".join(lines))]
        other = next(rank for rank, text in enumerate(texts) if text != texts[0])
        of_first, of_other = (
            next(iter(sorted(set(texts[a]) - set(texts[b]))), "nothing like it")
            for a, b in ((0, other), (other, 0))
        )
        raise DistributedError(
            f"ranks 0 and {other} do not match: {key} has {of_first} on rank 0, {of_other} on rank {other}; "
            "expected the same model on all ranks"
        )
