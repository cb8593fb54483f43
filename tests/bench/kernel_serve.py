"""The common parts of the Python workers of `bench_kernels.py`: protocol, description of a case, and clock.

A worker is started with its number of threads, prints ``ready``, and answers each line:

    case DTYPE OP FROZEN LAYOUT EXTENT...   ``ways NAME...``, what it can do of that, or ``refused REASON``
    turn NAME CALLS                         the seconds of a call: the mean of so many, after others for 50 ms

EXTENT are N, C and the spatial ones, whatever the layout. Only the standard library is used here, for a worker may
run in an environment of its own. `kernel_serve.hpp` is the same for workers in C++.
"""

from __future__ import annotations

import sys
import time
from typing import NamedTuple

WARM_SECONDS = 0.05
"""As in `bngrad.bench.timing`, which another environment does not have."""


class Asked(NamedTuple):
    """A case as it came over the pipe."""

    dtype: str
    op: str
    frozen: bool
    layout: str
    extents: tuple[int, ...]

    @classmethod
    def parse(cls, words):
        dtype, op, frozen, layout, *extents = words
        return cls(dtype, op, frozen == "1", layout, tuple(map(int, extents)))

    @property
    def shape(self):
        """Of X in memory."""
        n, c, *spatial = self.extents
        return (n, c, *spatial) if self.layout == "NCHW" else (n, *spatial, c)

    @property
    def channels(self):
        return self.extents[1]

    @property
    def channel_axis(self):
        return 1 if self.layout == "NCHW" else len(self.extents) - 1

    @property
    def axes(self):
        return tuple(axis for axis in range(len(self.extents)) if axis != self.channel_axis)


class RefusedError(Exception):
    """A worker cannot do a case; the message has the reason."""


def serve(prepare):
    """Answers until stdin ends.

    Args:
        prepare: Takes an `Asked` and returns functions without arguments by the names of the ways; may raise
            `RefusedError`.
    """
    print("ready", flush=True)
    ways = {}
    for line in sys.stdin:
        command, *words = line.split()
        if command == "case":
            ways = {}  # free what the last one needed before the next one takes more
            try:
                ways = prepare(Asked.parse(words))
                answer = f"ways {' '.join(ways)}"
            except RefusedError as error:
                answer = f"refused {error}"
            except Exception as error:  # noqa: BLE001 - a system of others, whose reasons are its own
                answer = "refused " + " ".join(f"{type(error).__name__}: {error}".split())[:300]
        else:
            answer = repr(run_turn(ways[words[0]], int(words[1])))
        print(answer, flush=True)


def run_turn(call, calls):
    """As `bngrad.bench.timing.run_trial`."""
    end = time.perf_counter() + WARM_SECONDS
    call()
    while time.perf_counter() < end:
        call()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls
