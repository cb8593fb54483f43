"""Ranks that are threads of one process: what runs without collectives in a graph needs no MPI."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from bngrad.distributed import Communicator
from bngrad.errors import DistributedError


class Threads:
    """The shared table of messages, by rank, for each exchange."""

    def __init__(self, size):
        self.size, self.messages = size, [None] * size
        self.barrier = threading.Barrier(size, timeout=20)

    def exchange(self, rank, message):
        self.messages[rank] = message
        self.barrier.wait()
        messages = list(self.messages)
        self.barrier.wait()
        return messages


class ThreadCommunicator(Communicator):
    """The interface of a communicator, with the checks that the op library makes."""

    def __init__(self, threads, rank):
        self._threads, self.rank, self.size = threads, rank, threads.size

    def attach(self):
        pass

    def errors(self):
        return contextlib.nullcontext()

    def _exchange(self, key, value):
        messages = self._threads.exchange(self.rank, (key, value))
        for rank, (other, text) in enumerate(messages):
            if other is None:
                raise DistributedError(f"rank {rank} failed: {text}")
        for rank, (other, _) in enumerate(messages):
            if other != messages[0][0]:
                raise DistributedError(
                    f"ranks 0 and {rank} do not match: rank 0 is at {messages[0][0]}, rank {rank} at {other}"
                )
        return [value for _, value in messages]

    def all_gather(self, key, value):
        return np.stack(self._exchange(f"all_gather {key}", np.array(value)))

    def gather_text(self, key, text):
        return self._exchange(f"gather_text {key}", text)

    def broadcast(self, key, arrays):
        return {name: array.copy() for name, array in self._exchange(f"broadcast {key}", arrays)[0].items()}

    def agree(self, key, flag):
        return any(self._exchange(f"agree {key}", flag))

    def fail(self, error):
        self._threads.exchange(self.rank, (None, str(error)))


def on_threads(size, function):
    """The results or errors of a function of a communicator on each rank."""
    threads = Threads(size)

    def call(rank):
        try:
            return function(ThreadCommunicator(threads, rank))
        except BaseException as error:
            if isinstance(error, threading.BrokenBarrierError):
                raise
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(call, range(size)))
