"""Times collective operations between the ranks of an MPI job, by size.

    mpiexec -n 2 python tests/bench/bench_collectives.py
    MPIR_CVAR_NOLOCAL=1 UCX_TLS=tcp,self mpiexec -n 2 python tests/bench/bench_collectives.py    # MPICH, by TCP

all-gather and all-to-all of blocks of as many bytes, in microseconds: by MPI itself (blocking, from Python), by
the transport of bngrad (nonblocking, with a time-out), and by the op library, which exchanges headers before. Then
all-reduces, as those of gradients. Trials take turns; a trial is the mean of many calls, on the slowest rank. The
model is time = alpha + beta * bytes that a rank receives, with the least relative squares.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from functools import partial
from pathlib import Path

import numpy as np

from bngrad.distributed import Communicator, mpi
from bngrad.distributed.transport import ALL_GATHER, ALL_TO_ALL
from bngrad.runtime import native_library

TRIAL_SECONDS = 0.02
FLOAT = 1
"""The number of the type in the C interface."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=15)
    parser.add_argument("--max-bytes", type=int, default=1 << 22, help="of a block, for one rank")
    parser.add_argument("--json", help="a file for the results")
    options = parser.parse_args()
    with Communicator(timeout=120) as comm:
        world = mpi.load().COMM_WORLD
        results = [
            measure(size, world, comm, options.trials)
            for size in (4**power for power in range(2, 20))
            if size <= options.max_bytes
        ]
        models = {way: fit(results, way, comm.size) for way in results[0]["microseconds"]}
        if comm.rank == 0:
            report(results, models, comm.size)
            if options.json:
                vendor = mpi.load().Get_library_version().splitlines()[0]
                text = json.dumps({"mpi": vendor, "ranks": comm.size, "rows": results, "models": models}, indent=1)
                Path(options.json).write_text(text + "\n", encoding="utf-8")


def measure(size, world, comm, trials):
    """The time of each way to exchange blocks of ``size`` bytes: quartiles, in microseconds."""
    ranks = comm.size
    send = np.zeros(ranks * size, np.uint8)
    receive = np.zeros(ranks * size, np.uint8)
    addresses = send.ctypes.data, receive.ctypes.data
    pointers = [ctypes.c_void_p(address) for address in addresses]
    byte = mpi.load().BYTE
    transport, call = comm._transport, native_library.call
    count = max(1, ranks * size // 4)
    ways = {
        "all-gather, MPI": partial(world.Allgather, [send, size, byte], [receive, size, byte]),
        "all-gather, transport": partial(transport.move, ALL_GATHER, *addresses, size),
        "all-gather, library": partial(call, "bngrad_all_gather", b"a", ctypes.c_int64(size), *pointers),
        "all-to-all, MPI": partial(world.Alltoall, [send, size, byte], [receive, size, byte]),
        "all-to-all, transport": partial(transport.move, ALL_TO_ALL, *addresses, size),
        # Of ranks * size bytes: each rank adds up a block.
        "all-reduce, library": partial(call, "bngrad_all_reduce", b"r", ctypes.c_int64(count), FLOAT, *pointers),
    }
    counts = {name: calls_of_a_trial(way, world) for name, way in ways.items()}
    times = {name: [] for name in ways}
    for _ in range(trials):
        for name, way in ways.items():
            times[name].append(trial(way, counts[name], world))
    quartiles = {name: [1e6 * t for t in np.quantile(series, (0.25, 0.5, 0.75))] for name, series in times.items()}
    return {"bytes": size, "microseconds": quartiles}


def calls_of_a_trial(way, world):
    """The same number on all ranks."""
    return world.bcast(max(1, min(500, int(TRIAL_SECONDS / trial(way, 5, world)))))


def trial(way, calls, world):
    """The seconds of a call, on the slowest rank."""
    world.Barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        way()
    return world.allreduce((time.perf_counter() - begin) / calls, op=mpi.load().MAX)


def fit(results, way, ranks):
    """alpha in microseconds, 1/beta in GB/s, and the largest relative difference of the model."""
    received = np.array([(ranks - 1) * row["bytes"] for row in results], np.float64)
    if way.startswith("all-reduce"):
        received *= 2  # an all-to-all and an all-gather
    took = np.array([row["microseconds"][way][1] for row in results])
    design = np.stack([np.ones_like(took), received], axis=1) / took[:, None]
    (alpha, beta), *_ = np.linalg.lstsq(design, np.ones_like(took), rcond=None)
    error = float(np.abs((alpha + beta * received) / took - 1).max())
    return {"alpha_us": float(alpha), "gb_per_s": float(1e-3 / beta) if beta > 0 else None, "error": error}


def report(results, models, ranks):
    names = list(models)
    print(f"{mpi.load().Get_library_version().splitlines()[0]}: {ranks} ranks; microseconds, median (quartiles)\n")
    print("| bytes of a block | " + " | ".join(names) + " |\n|" + "---:|" * (1 + len(names)))
    for row in results:
        cells = [
            f"{m:.0f} ({low:.0f}-{high:.0f})" for low, m, high in (row["microseconds"][name] for name in names)
        ]
        print(f"| {row['bytes']} | " + " | ".join(cells) + " |")
    print("\n| | alpha, us | 1/beta, GB/s | largest difference |\n|---|---:|---:|---:|")
    for name, model in models.items():
        rate = "-" if model["gb_per_s"] is None else f"{model['gb_per_s']:.2f}"
        print(f"| {name} | {model['alpha_us']:.1f} | {rate} | {model['error']:.0%} |")


if __name__ == "__main__":
    main()
