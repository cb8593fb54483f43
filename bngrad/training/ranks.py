"""The ranks of a training run: their joint actions, and errors of one rank raised on all."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from bngrad import errors
from bngrad.distributed import Communicator
from bngrad.errors import BngradError, DistributedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mpi4py import MPI
    from numpy.typing import NDArray

    Array = NDArray[Any]

_communicators: list[tuple[MPI.Intracomm, Communicator]] = []
"""The communicators of this process, each with its mpi4py original; only one can be attached at a time."""


class Ranks:
    """The ranks of a run. All of them call its methods, in the same order and with the same keys.

    Args:
        comm: Their communicator; None for a single rank.

    Raises:
        InputError: It is something else.
        VersionError: MPI is missing; see `Communicator`.
        DistributedError: See `Communicator`.
    """

    def __init__(self, comm: Communicator | MPI.Intracomm | None = None) -> None:
        comm = comm if comm is None or isinstance(comm, Communicator) else _communicator_of(comm)
        self.comm = comm
        self.rank = 0 if comm is None else comm.rank
        self.size = 1 if comm is None else comm.size
        self._told: BaseException | None = None
        """The last error of this rank that the others know of."""

    @property
    def is_first(self) -> bool:
        """True on rank 0, which reads and writes the files of the run."""
        return self.rank == 0

    def attach(self) -> None:
        """Connects the collectives of the op library, which sessions that are made later use."""
        if self.comm is not None:
            self.comm.attach()

    @contextlib.contextmanager
    def together(self, key: str) -> Iterator[None]:
        """Runs a block without collectives; an error in it is raised on all ranks.

        Args:
            key: A name for the block.

        Raises:
            BngradError: The error of the first rank with one; its message names the rank, unless all have the
                same.
            DistributedError: A rank failed with another exception; see also `Communicator`.
        """
        if self.comm is None:
            yield
            return
        try:
            yield
        except BaseException as error:
            self.comm.agree(key, flag=True)
            texts = self.comm.gather_text(f"{key}/error", _text_of(error))
            self._told = error
            if isinstance(error, BngradError):
                raise _first_error(texts) from error
            raise
        if self.comm.agree(key, flag=False):
            raise _first_error(self.comm.gather_text(f"{key}/error", ""))

    def on_first(self, key: str, action: Callable[[], Any]) -> Any:  # noqa: ANN401 - anything that JSON has
        """Runs an action without collectives on rank 0.

        Args:
            key: A name for the action.
            action: The action; it returns anything that JSON can hold.

        Returns:
            The result, on all ranks.

        Raises:
            BngradError: The error of rank 0, on all ranks.
            DistributedError: Rank 0 failed with another exception; see also `Communicator`.
        """
        if self.comm is None:
            return action()
        if not self.is_first:
            result, error = json.loads(self.comm.gather_text(key, "")[0])
            if error is not None:
                raise _raised_by(0, error, "")
            return result
        try:
            result = action()
        except BaseException as error:
            self.comm.gather_text(key, json.dumps([None, _text_of(error)]))
            self._told = error
            if isinstance(error, BngradError):
                error.on_all_ranks = True
            raise
        self.comm.gather_text(key, json.dumps([result, None]))
        return result

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Runs a block; an error in it makes the next collective of the other ranks fail, too."""
        try:
            yield
        except BaseException as error:
            shared = isinstance(error, BngradError) and (error.on_all_ranks or isinstance(error, DistributedError))
            if self.comm is not None and not shared and error is not self._told:
                self._told = error
                self.comm.fail(error)
            raise

    def errors(self) -> contextlib.AbstractContextManager[None]:
        """Returns a block that converts an error of ONNX Runtime in a collective to that of the communicator.

        Raises:
            DistributedError: See `Communicator`.
        """
        return contextlib.nullcontext() if self.comm is None else self.comm.errors()

    def require_same(self, what: str, values: Mapping[str, Any], expected: str) -> None:
        """Checks that values are the same on all ranks.

        Args:
            what: The name of all values together.
            values: The values by name; anything that JSON can hold.
            expected: The things that must be the same on all ranks, for the message.

        Raises:
            DistributedError: They are not; the message names the value and two ranks. See also `Communicator`.
        """
        if self.comm is None:
            return
        every = [json.loads(text) for text in self.comm.gather_text(what, json.dumps(values, default=str))]
        for rank, other in enumerate(every):
            for name, value in every[0].items():
                if other.get(name) != value:
                    text = f"{name} is {value} on rank 0 and {other.get(name)} on rank {rank}"
                    raise _on_all_ranks(
                        DistributedError(
                            f"ranks 0 and {rank} do not match: {text}; expected {expected} on all ranks"
                        )
                    )

    def texts(self, key: str, text: str) -> list[str]:
        """Returns the texts of all ranks.

        Raises:
            DistributedError: See `Communicator`.
        """
        return [text] if self.comm is None else self.comm.gather_text(key, text)

    def arrays(self, key: str, array: Array) -> Array:
        """Returns the arrays of all ranks, which have the same shape, stacked.

        Raises:
            DistributedError: See `Communicator`.
        """
        return array[None] if self.comm is None else self.comm.all_gather(key, array)

    def any(self, key: str, flag: bool) -> bool:
        """Returns whether a flag is true on any rank.

        Raises:
            DistributedError: See `Communicator`.
        """
        return flag if self.comm is None else self.comm.agree(key, flag)

    def from_first(self, key: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the arrays of rank 0; those of the other ranks have the same names, types and shapes.

        Raises:
            DistributedError: See `Communicator`.
        """
        return dict(arrays) if self.comm is None else self.comm.broadcast(key, dict(arrays))


def _communicator_of(comm: MPI.Intracomm) -> Communicator:
    """Returns the communicator for one of mpi4py, the same each time."""
    for mpi_comm, communicator in _communicators:
        if mpi_comm == comm:
            return communicator
    communicator = Communicator(comm)
    _communicators.append((comm, communicator))
    return communicator


def _text_of(error: BaseException) -> str:
    return json.dumps([type(error).__name__, str(error)])


def _first_error(texts: list[str]) -> BngradError:
    """The error to raise on all ranks."""
    rank = next(index for index, text in enumerate(texts) if text)
    return _raised_by(rank, texts[rank], "" if len(set(texts)) == 1 else f"rank {rank}: ")


def _raised_by(rank: int, text: str, prefix: str) -> BngradError:
    name, message = json.loads(text)
    kind = getattr(errors, name, None)
    if kind is None:
        return DistributedError(f"rank {rank} failed: {name}: {message}")
    return _on_all_ranks(kind(f"{prefix}{message}"))


def _on_all_ranks(error: BngradError) -> BngradError:
    error.on_all_ranks = True
    return error
