"""Ranks in one process: a thread and a copy of the library for each.

Copies of the file are loaded as libraries of their own, each with its own collective.
"""

from __future__ import annotations

import ctypes
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from bngrad.distributed.collective import Function
from bngrad.runtime import native_library

ALL_GATHER, ALL_TO_ALL = 0, 1
MESSAGE = ctypes.c_size_t(1024)


class Rank:
    """A copy of the library, and what its collective was asked for."""

    def __init__(self, path, rank=0):
        self.path, self.rank = path, rank
        self.library = ctypes.CDLL(str(path))
        self.log = []
        self._callback = None

    def set(self, move, rank, ranks):
        """Sets ``move(operation, send) -> bytes`` as the collective; an exception is its error message."""

        def collective(_context, operation, send, receive, size, error, error_size):
            sent = ctypes.string_at(send, size * (ranks if operation == ALL_TO_ALL else 1))
            self.log.append((operation, sent))
            try:
                received = move(operation, sent)
            except Exception as failure:  # noqa: BLE001 - as a program has to
                text = str(failure).encode()[: error_size - 1]
                ctypes.memmove(error, text + b"\0", len(text) + 1)
                return 7
            assert len(received) == ranks * size
            ctypes.memmove(receive, received, len(received))
            ctypes.memset(error, 0, 1)
            return 0

        self._callback = Function(collective)
        self.call("bngrad_set_collective", self._callback, None, rank, ranks)

    def unset(self):
        self.call("bngrad_set_collective", None, None, 0, 0)

    def call(self, function, *arguments):
        """Calls a function of the library; raises RuntimeError with the status and the message."""
        message = ctypes.create_string_buffer(MESSAGE.value)
        status = getattr(self.library, function)(*arguments, message, MESSAGE)
        if status:
            raise RuntimeError(f"{status}: {message.value.decode()}")

    def all_gather(self, key, value, ranks):
        value = np.asarray(value, order="C")
        gathered = np.empty((ranks, *value.shape), value.dtype)
        size = ctypes.c_int64(value.nbytes)
        self.call("bngrad_all_gather", _bytes(key), size, pointer(value), pointer(gathered))
        return gathered

    def all_reduce(self, key, value):
        value = np.asarray(value, order="C")
        total = np.empty_like(value)
        kind = {"float32": 1, "float64": 11}[value.dtype.name]
        count = ctypes.c_int64(value.size)
        self.call("bngrad_all_reduce", _bytes(key), count, kind, pointer(value), pointer(total))
        return total

    def fail(self, message):
        self.call("bngrad_fail_collective", message.encode())


class World:
    """Ranks that exchange bytes through memory."""

    def __init__(self, ranks):
        self.ranks = ranks
        self._sent = [b""] * len(ranks)
        self._barrier = threading.Barrier(len(ranks), timeout=20)
        for rank in ranks:
            rank.log.clear()
            rank.set(lambda operation, sent, r=rank.rank: self._move(r, operation, sent), rank.rank, len(ranks))

    def _move(self, rank, operation, sent):
        self._sent[rank] = sent
        self._barrier.wait()
        received = list(self._sent)
        if operation == ALL_TO_ALL:
            size = len(sent) // len(received)
            received = [block[rank * size :][:size] for block in received]
        self._barrier.wait()
        return b"".join(received)

    def run(self, work):
        """Returns ``work(rank)`` of every rank, or the text of its RuntimeError."""

        def guarded(rank):
            try:
                return work(rank)
            except RuntimeError as error:
                return str(error)

        with ThreadPoolExecutor(len(self.ranks)) as pool:
            return list(pool.map(guarded, self.ranks))


def copies(folder, count):
    """Returns ranks with copies of the installed library in a folder."""
    source = native_library.library_path()
    paths = [folder / f"rank{rank}{source.suffix}" for rank in range(count)]
    for path in paths:
        shutil.copyfile(source, path)
    return [Rank(path, rank) for rank, path in enumerate(paths)]


def pointer(array):
    return ctypes.c_void_p(array.ctypes.data)


def _bytes(key):
    return key.encode() if isinstance(key, str) else key
