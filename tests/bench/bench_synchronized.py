"""Split batch norms on one rank beside the fused ops: the cost of synchronization without a network.

    python tests/bench/bench_synchronized.py [--batch N] [--threads N] [--repeats N]

For each shape of ResNet-50's batch norms, in float: the time of BatchNormalizationTraining and of Moments,
AllGather, MergeMoments and Apply; of BatchNormalizationGrad and of GradSums, AllGather and GradApply. The last
lines have the sums over the 53 batch norms of the network. Calls of the C interface, in turns, each after one that
is not timed. The shortest time counts: other load on the machine only adds to it. Not a test: it only prints.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from functools import partial

import numpy as np

from bngrad.runtime.aligned import empty_at_cache_line
from bngrad.runtime.kernel_call import pointers
from bngrad.runtime.native_library import Layout, call, loaded
from kernel_cases import RESNET50

TIMES = (1, 6, 1, 4, 7, 1, 5, 11, 1, 7, 5, 4)
"""The number of batch norms of ResNet-50 with each shape."""

STEPS = ("forward", "split_forward", "backward", "split_backward")
EPSILON, MOMENTUM = ctypes.c_double(1e-5), ctypes.c_double(0.9)


class Steps:
    """The calls of a batch norm, fused and split, with their arrays."""

    def __init__(self, shape, threads):
        rng, c = np.random.default_rng(0), shape[1]
        x, dy, y, dx = (empty_at_cache_line(shape, np.dtype(np.float32)) for _ in range(4))
        for array in (x, dy, y, dx):
            array[...] = np.resize(rng.standard_normal(1 << 16, np.float32), shape)
        scale, bias, mean, var, *new = (rng.uniform(0.5, 1.5, c).astype(np.float32) for _ in range(10))
        moments, sums = np.empty((3, c)), np.empty((2, c))
        all_moments, all_sums, statistics, count = (
            np.empty((3, c)),
            np.empty((2, c)),
            np.empty((2, c)),
            np.empty(()),
        )
        self._kept = [
            x,
            dy,
            y,
            dx,
            scale,
            bias,
            mean,
            var,
            new,
            moments,
            sums,
            all_moments,
            all_sums,
            statistics,
            count,
        ]

        dims, axes = (ctypes.c_int64 * 4)(*shape), (ctypes.c_int64 * 3)(0, 2, 3)
        layout, ranks = ctypes.byref(Layout(dims, axes, 4, 3, 1, 1, 1)), ctypes.c_int64(1)
        batch_norm = "bngrad_batch_normalization_"
        self.forward = [
            self._call(
                batch_norm + "training",
                layout,
                EPSILON,
                MOMENTUM,
                1,
                *pointers(x, scale, bias, mean, var, y, *new[:4]),
                threads,
            )
        ]
        self.split_forward = [
            self._call(batch_norm + "moments", layout, *pointers(x, moments), threads),
            self._gather(moments, all_moments),
            self._call(
                batch_norm + "merge_moments", ranks, ctypes.c_int64(c), 1, EPSILON, MOMENTUM, 1,
                *pointers(all_moments, mean, var, *new[:2], *statistics, count),
            ),
            self._call(batch_norm + "apply", layout, *pointers(x, scale, bias, *statistics, y), threads),
        ]  # fmt: skip
        self.backward = [
            self._call(batch_norm + "grad", layout, 1, *pointers(dy, x, scale, *new[2:4], dx, *new[4:6]), threads)
        ]
        self.split_backward = [
            self._call(
                batch_norm + "grad_sums", layout, *pointers(dy, None, x, *statistics, sums, *new[4:6]), threads
            ),
            self._gather(sums, all_sums),
            self._call(
                batch_norm + "grad_apply", layout, ranks, ctypes.c_double(float(count)),
                *pointers(dy, None, x, scale, *statistics, all_sums, dx), threads,
            ),
        ]  # fmt: skip

    def _gather(self, value, gathered):
        return self._call("bngrad_all_gather", b"key", ctypes.c_int64(value.nbytes), *pointers(value, gathered))

    @staticmethod
    def _call(function, *arguments):
        call(function, *arguments)
        return partial(getattr(loaded(), function), *arguments, None, 0)


def shortest(steps, repeats):
    """Returns the shortest time of each step; they are timed in turns."""
    seconds = dict.fromkeys(STEPS, float("inf"))
    for _ in range(repeats):
        for name in STEPS:
            for _ in range(2):  # the first call only fills the caches
                start = time.perf_counter()
                for function in getattr(steps, name):
                    function()
                last = time.perf_counter() - start
            seconds[name] = min(seconds[name], last)
    return seconds


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=100)
    arguments = parser.parse_args()
    print("| C, H x W | forward, ms | split | ratio | backward, ms | split | ratio |")
    print("|---|---|---|---|---|---|---|")
    totals = dict.fromkeys(STEPS, 0.0)
    for (channels, side), times in zip(RESNET50, TIMES, strict=True):
        steps = Steps((arguments.batch, channels, side, side), arguments.threads)
        seconds = shortest(steps, arguments.repeats)
        print(row(f"{channels}, {side} x {side}", seconds), flush=True)
        totals = {name: total + times * seconds[name] for name, total in totals.items()}
    print(row("all 53", totals))
    fused, split = (
        totals[f] + totals[b] for f, b in (("forward", "backward"), ("split_forward", "split_backward"))
    )
    print(
        f"forward and backward: {1e3 * fused:.1f} ms fused, {1e3 * split:.1f} ms split, ratio {split / fused:.3f}"
    )


def row(name, seconds):
    """Returns a row of the table."""
    parts = []
    for op in ("forward", "backward"):
        fused, split = seconds[op], seconds[f"split_{op}"]
        parts += [f"{1e3 * fused:.3f}", f"{1e3 * split:.3f}", f"{split / fused:.2f}"]
    return f"| {name} | {' | '.join(parts)} |"


if __name__ == "__main__":
    main()
