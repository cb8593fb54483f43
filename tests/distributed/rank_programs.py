"""The programs that the ranks of the tests run: python rank_programs.py NAME [TIMEOUT]."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np

from bngrad.distributed import Communicator, collective, launched, mpi
from bngrad.distributed.transport import ALL_GATHER, ALL_TO_ALL, Transport
from bngrad.errors import DistributedError, InputError
from bngrad.runtime import native_library

TIMEOUT = float(sys.argv[2]) if len(sys.argv) > 2 else 60.0
LATE = 2.5 * TIMEOUT
STEPS = 4
FAULTY, AT = 1, 2
"""The rank with a fault, and the step in which it has it."""


def values():
    """Every method, with values of several types and shapes; detached, and attached again."""
    with Communicator(timeout=TIMEOUT) as comm:
        rank, size = comm.rank, comm.size
        assert launched() == (size if size > 1 else 0)
        for dtype in ("float64", "int8", "bool", "complex64", "<U5", ">i4"):
            array = np.arange(6).reshape(2, 3).astype(dtype)
            row = array if rank else array[::-1].copy()
            gathered = comm.all_gather(f"values/{dtype}", row)
            assert gathered.dtype == array.dtype
            assert gathered.tolist() == [array[::-1].tolist(), *[array.tolist()] * (size - 1)]
        assert comm.all_gather("columns", np.ones((3, 4))[:, ::2] * rank).sum() == 6 * sum(range(size))
        assert comm.all_gather("empty", np.zeros((0, 4))).shape == (size, 0, 4)
        assert comm.all_gather("scalar", np.float32(rank)).tolist() == list(range(size))
        big = comm.all_gather("big", np.full(1 << 19, rank, np.float64))
        assert [set(row) for row in big] == [{float(r)} for r in range(size)]

        assert comm.gather_text("text", "\u00e9\0" * rank) == ["\u00e9\0" * r for r in range(size)]
        assert comm.gather_text("no text", "") == [""] * size
        state = {
            "w": np.full((2, 3), rank, np.float32),
            "scalar": np.array(rank),
            "empty": np.zeros(0),
            "transposed": np.arange(6.0).reshape(2, 3).T + rank,
        }
        own = {name: array.copy() for name, array in state.items()}
        received = comm.broadcast("state", state if rank else dict(reversed(state.items())))
        assert {name: array.tolist() for name, array in received.items()} == {
            "w": [[0, 0, 0]] * 2,
            "scalar": 0,
            "empty": [],
            "transposed": [[0, 3], [1, 4], [2, 5]],
        }
        assert received["w"].dtype == np.float32
        assert all((state[name] == own[name]).all() for name in own)
        assert comm.broadcast("nothing", {}) == {}

        assert comm.agree("one", rank == size - 1) is True
        assert comm.agree("none", False) is False
    assert comm.all_gather("attached again", rank).tolist() == list(range(size))
    comm.detach()


def refusals():
    """Refusals on all ranks, after which they go on."""
    from mpi4py import MPI

    for timeout in (0, -1, float("inf"), float("nan"), "5", True):
        with _raises(InputError, f"timeout is {timeout!r}; expected"):
            Communicator(timeout=timeout)
    for comm in (MPI.COMM_NULL, 3, "world"):
        with _raises(InputError, "expected an intracommunicator of mpi4py"):
            Communicator(comm)
    comm = Communicator(timeout=TIMEOUT)
    rank = comm.rank
    with _raises(InputError, "a: the value has dtype object; expected numbers"):
        comm.all_gather("a", np.array([None]))
    with _raises(InputError, "key is empty"):
        comm.all_gather("", 1)
    with _raises(
        DistributedError,
        f"ranks 0 and 1 do not match: rank 0 is at AllGather 'a' of 8 bytes, bngrad {_version()}, rank 1 at "
        f"AllGather 'b' of 8 bytes, bngrad {_version()}; expected the same model, bngrad and ONNX Runtime",
    ):
        comm.all_gather("ab"[rank], 1)
    with _raises(DistributedError, "ranks 0 and 1 do not match: rank 0 is at AllGather 'a' of 8 bytes"):
        comm.all_gather("a", np.zeros(1 + rank))
    other = {"w": np.zeros(2 + rank, np.float32), "v": np.zeros(1)}
    with _raises(
        DistributedError,
        "ranks 0 and 1 do not match: state has w float32[2] on rank 0, w float32[3] on rank 1; expected the same",
    ):
        comm.broadcast("state", other)
    del other["vw"[rank]]
    with _raises(DistributedError, "ranks 0 and 1 do not match: state has w float32[2] on rank 0, v float64[1]"):
        comm.broadcast("state", other)
    second = Communicator(comm=MPI.COMM_WORLD, timeout=TIMEOUT)
    with _raises(DistributedError, "another communicator is attached to the op library; detach it first"):
        second.attach()
    comm.detach()
    assert second.all_gather("second", rank).tolist() == list(range(comm.size))
    second.detach()


def sub_communicators():
    """Two halves, with collectives of their own at the same time."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    half = world.Split(world.rank % 2, -world.rank)
    half.Set_errhandler(MPI.ERRORS_ARE_FATAL)
    with Communicator(half, timeout=TIMEOUT) as comm:
        expected = sorted(range(world.rank % 2, world.size, 2), reverse=True)
        for step in range(10):
            assert comm.all_gather(f"half {world.rank % 2} {step}", world.rank).tolist() == expected


def pieces():
    """Blocks larger than MPI's counts, with a lowered limit."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    for piece in (1, 7, 64, 1 << 20):
        transport = Transport(comm, TIMEOUT, piece=piece)
        for size in (1, 6, 7, 8, 65, 200):
            rng = np.random.default_rng(size)
            sent = rng.integers(0, 255, (comm.size, comm.size, size), np.uint8)
            for operation, own, expected in (
                (ALL_GATHER, sent[comm.rank, 0].copy(), sent[:, 0]),
                (ALL_TO_ALL, sent[comm.rank].copy(), sent[:, comm.rank]),
            ):
                got = np.full((comm.size + 1, size), 77, np.uint8)
                transport.move(operation, own.ctypes.data, got.ctypes.data, size)
                assert (got[:-1] == expected).all(), (piece, size, operation)
                assert (got[-1] == 77).all()
            own = sent[0, 0].copy() if comm.rank == 0 else np.zeros(size, np.uint8)
            transport.broadcast(own.ctypes.data, size)
            assert (own == sent[0, 0]).all()


def fork():
    """A child of a rank cannot communicate, and does not end MPI."""
    comm = Communicator(timeout=TIMEOUT)
    comm.attach()
    child = os.fork()
    if child == 0:
        with _raises(DistributedError, "a fork of a rank cannot communicate"):
            comm.all_gather("child", 1)
        sys.exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    assert comm.all_gather("parent", 1).tolist() == [1] * comm.size


def another_thread():
    """With MPI_THREAD_FUNNELED, a thread that did not initialize MPI."""
    import mpi4py

    mpi4py.rc.thread_level = "funneled"
    comm = Communicator(timeout=TIMEOUT)
    with (
        ThreadPoolExecutor() as pool,
        _raises(DistributedError, "MPI_THREAD_FUNNELED by another thread than this"),
    ):
        pool.submit(comm.all_gather, "a", 1).result()
    assert comm.all_gather("b", 1).tolist() == [1] * comm.size


def without_threads():
    import mpi4py

    mpi4py.rc.thread_level = "single"
    with _raises(DistributedError, "MPI was initialized with MPI_THREAD_SINGLE; expected MPI_THREAD_FUNNELED"):
        Communicator(timeout=TIMEOUT)


def not_initialized():
    import mpi4py

    mpi4py.rc.initialize = False
    with _raises(DistributedError, "MPI is not initialized; expected a call of MPI.Init_thread() before"):
        Communicator(timeout=TIMEOUT)
    from mpi4py import MPI

    MPI.Init_thread()
    assert Communicator(timeout=TIMEOUT).size == MPI.COMM_WORLD.size


def finalized():
    from mpi4py import MPI

    MPI.Finalize()
    with _raises(DistributedError, "MPI is finalized; expected"):
        Communicator(timeout=TIMEOUT)


def two_operations():
    """One in a thread while another waits."""
    comm = Communicator(timeout=TIMEOUT)
    comm.attach()
    if comm.rank == FAULTY:
        time.sleep(0.5)
        comm.all_gather("first", 1)
        return
    first = threading.Thread(target=lambda: comm.all_gather("first", 1))
    first.start()
    time.sleep(0.1)
    with _raises(DistributedError, "another collective operation of this process is running"):
        comm.all_gather("second", 1)
    first.join()


def steps(fault):
    """Operations in a row, in one of which a rank has a fault."""
    comm = Communicator(timeout=TIMEOUT)
    comm.attach()
    try:
        for step in range(STEPS):
            if step == AT and comm.rank == FAULTY:
                fault(comm)
            comm.all_gather(f"step {step}", step)
    except KeyboardInterrupt:
        sys.exit(130)
    except DistributedError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)


def endless():
    comm = Communicator(timeout=TIMEOUT)
    try:
        for step in range(10**6):
            comm.all_gather(f"step {step}", np.zeros(1000))
    except DistributedError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)


def killed(_comm):
    os.kill(os.getpid(), signal.SIGKILL)


def killed_inside(comm):
    """While it waits for the headers of the others, which wait for it before."""
    transport = comm._transport
    header = np.zeros(256, np.uint8)
    received = np.zeros((comm.size, 256), np.uint8)
    _header_of(header, f"AllGather 'step {AT}' of 8 bytes, bngrad {_version()}")
    transport.move(ALL_GATHER, header.ctypes.data, received.ctypes.data, 256)
    killed(comm)


def killed_waiting(comm):
    """A signal without a handler, inside the wait for a rank that is late."""
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    _wait_for_nobody(comm)


def slow(_comm):
    time.sleep(LATE)


def slower_than_others(_comm):
    time.sleep(TIMEOUT / 4)


def interrupted(comm):
    threading.Timer(0.3, signal.raise_signal, [signal.SIGINT]).start()
    _wait_for_nobody(comm)


def ends_early(_comm):
    sys.exit(0)


def fails(comm):
    comm.fail(ValueError("the data\nare gone"))
    sys.exit(2)


def fails_with_a_known_error(comm):
    comm.fail(InputError("images have shape [3]; expected [4]"))
    sys.exit(2)


def raises(comm):
    with comm:
        raise ValueError("the data\nare gone")


def another_key(comm):
    comm.all_gather("another step", AT)


def another_size(comm):
    comm.all_gather(f"step {AT}", np.zeros(3))


def another_library(comm):
    """The header of another version."""
    header, received = np.zeros(256, np.uint8), np.zeros((comm.size, 256), np.uint8)
    _header_of(header, f"AllGather 'step {AT}' of 8 bytes, bngrad 99.0.0")
    comm._transport.move(ALL_GATHER, header.ctypes.data, received.ctypes.data, 256)
    sys.exit(0)


def caller_ends_mpi():
    """The program imported mpi4py, which ends MPI: the job is aborted."""
    import mpi4py.MPI  # noqa: F401

    steps(slow)


def late_start():
    """A rank that comes too late to make a communicator."""
    if mpi.load().COMM_WORLD.rank == FAULTY:
        time.sleep(LATE)
    Communicator(timeout=TIMEOUT)


def interrupted_in_the_library():
    """The exception passes through the op library, which has errors of its own."""
    comm = Communicator(timeout=TIMEOUT)
    comm.attach()
    if comm.rank == FAULTY:
        threading.Timer(0.3, signal.raise_signal, [signal.SIGINT]).start()
        arrays = np.zeros((2, 9))
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in arrays]
        with _raises(KeyboardInterrupt, ""), comm.errors():
            native_library.call("bngrad_all_gather", b"a", ctypes.c_int64(8), *pointers)
        comm.fail(KeyboardInterrupt())  # does nothing
        with _raises(DistributedError, f"rank {FAULTY} cannot continue after an earlier error: KeyboardInterrupt"):
            comm.broadcast("b", {"w": np.zeros(3)})
        sys.exit(130)
    time.sleep(1)
    with _raises(DistributedError, f"rank {comm.rank} waited {TIMEOUT:g} s for another rank"):
        comm.all_gather("a", 1)
    sys.exit(2)


def interrupted_before_the_function():
    """A signal in the library, which Python handles when the function begins."""
    comm = Communicator(timeout=TIMEOUT)
    comm.attach()
    if comm.rank != FAULTY:
        with _raises(DistributedError, f"rank {comm.rank} waited {TIMEOUT:g} s for another rank"):
            comm.all_gather("a", 1)
        sys.exit(2)
    function, _ = collective._attached[comm._transport]
    with _raises(KeyboardInterrupt, ""), comm.errors():
        sys.unraisablehook(SimpleNamespace(object=function, exc_value=KeyboardInterrupt()))
        raise RuntimeError("the collective function did not run to its end")
    assert isinstance(comm._transport.failure, KeyboardInterrupt)
    sys.exit(130)


def errors_of_onnxruntime():
    comm = Communicator(timeout=TIMEOUT)
    status = "Non-zero status code returned while running {} node. Name:'a' Status Message: ranks 0 and\n1"
    with _raises(DistributedError, "ranks 0 and 1"), comm.errors():
        raise RuntimeError(status.format("AllReduce"))
    with _raises(RuntimeError, "running Conv node"), comm.errors():
        raise RuntimeError(status.format("Conv"))


def _wait_for_nobody(comm):
    """An operation that the other ranks reach only at their end."""
    comm._transport._run(comm._transport._at_end.Ibarrier)


class _raises:  # noqa: N801 - as pytest.raises, which the ranks need not import
    def __init__(self, kind, text):
        self.kind, self.text = kind, text

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _traceback):
        assert isinstance(error, self.kind), (kind, error)
        assert self.text in str(error), error
        return True


def _header_of(header, text):
    encoded = text.encode()
    header[: len(encoded)] = np.frombuffer(encoded, np.uint8)


def _version():
    return native_library.version()


FAULTS = (
    killed,
    killed_inside,
    killed_waiting,
    slow,
    slower_than_others,
    interrupted,
    ends_early,
    fails,
    fails_with_a_known_error,
    raises,
    another_key,
    another_size,
    another_library,
)

if __name__ == "__main__":
    program = globals()[sys.argv[1]]
    steps(program) if program in FAULTS else program()
