"""A model of the time of a synchronized training step on many machines.

    python tests/bench/distributed_model.py STEP [--link NAME:LATENCY:BANDWIDTH ...] [--compute SECONDS ...]
    python tests/bench/distributed_model.py --measure    # the rate of the sums over ranks on this machine

STEP is a training step that was made with --sync; its collective operations are read from the graph. Each
operation is counted with the algorithm that MPICH chooses for its size, at a time of latency + bytes/bandwidth a
message. The output is a table for each link and each time of the computation. Not a test: it only prints.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx

from bngrad.distributed.collective import Function
from bngrad.opset import schemas
from bngrad.runtime import native, native_library

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

HEADER = 256
"""Bytes of each rank that are exchanged before each operation."""
GATHERED = 1 << 16
"""Bytes up to which AllReduce gathers all values; it exchanges parts of larger ones."""

# MPICH 4's defaults: MPIR_CVAR_ALLGATHER_SHORT_MSG_SIZE, ..._LONG_MSG_SIZE, MPIR_CVAR_ALLTOALL_SHORT_MSG_SIZE.
SHORT_ALL_GATHER, LONG_ALL_GATHER, SHORT_ALL_TO_ALL = 81920, 524288, 256


class Link(NamedTuple):
    """The network: a message of n bytes takes latency + n/bandwidth seconds."""

    name: str
    latency: float
    bandwidth: float
    overhead: float
    """Seconds of the transport in Python, which each exchange takes in addition."""

    def all_gather(self, ranks: int, size: int) -> float:
        """Seconds to gather ``size`` bytes of each rank on all ranks."""
        power_of_two = ranks & (ranks - 1) == 0
        if ranks * size < (LONG_ALL_GATHER if power_of_two else SHORT_ALL_GATHER):
            messages = math.ceil(math.log2(ranks))  # recursive doubling, or Bruck's algorithm
        else:
            messages = ranks - 1  # a ring
        return self.overhead + messages * self.latency + (ranks - 1) * size / self.bandwidth

    def all_to_all(self, ranks: int, size: int) -> float:
        """Seconds to send ``size`` bytes from each rank to each."""
        if size <= SHORT_ALL_TO_ALL:  # Bruck's algorithm
            messages = math.ceil(math.log2(ranks))
            return self.overhead + messages * (self.latency + ranks / 2 * size / self.bandwidth)
        return self.overhead + (ranks - 1) * (self.latency + size / self.bandwidth)


class Operation(NamedTuple):
    """A collective operation: AllGather or AllReduce, its key, and the bytes of each rank."""

    kind: str
    key: str
    size: int


class Times(NamedTuple):
    """Seconds of a step."""

    compute: float
    headers: float
    statistics: float
    """The exchange of the moments and sums of batch norms."""
    gradients: float
    """The exchange of gradients and losses."""
    sums: float
    """Adding what was exchanged."""


def operations(model: onnx.ModelProto) -> list[Operation]:
    """The collective operations of a synchronized step."""
    schemas.register_schemas()  # for the inference of shapes
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    graph = inferred.graph
    types = {value.name: value.type.tensor_type for value in [*graph.value_info, *graph.input, *graph.output]}
    collectives = []
    for node in graph.node:
        if node.domain == "bngrad" and node.op_type in ("AllGather", "AllReduce"):
            tensor = types[node.input[0]]
            shape = [dim.dim_value for dim in tensor.shape.dim]
            width = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).itemsize
            (key,) = (attribute.s.decode() for attribute in node.attribute if attribute.name == "key")
            collectives.append(Operation(node.op_type, key, math.prod(shape) * width))
    return collectives


def times(operations: Iterable[Operation], link: Link, ranks: int, compute: float, rate: float) -> Times:
    """The time of a step with one rank on each machine.

    Args:
        operations: Those of the step.
        link: The network; each machine has one, and all can send and receive at once.
        ranks: Number of machines.
        compute: Seconds of the step on one machine, with the batch of one rank.
        rate: Bytes a second at which exchanged values are added.
    """
    if ranks == 1:
        return Times(compute, 0, 0, 0, 0)
    headers = statistics = gradients = sums = 0.0
    for operation in operations:
        size = operation.size
        headers += link.all_gather(ranks, HEADER)
        if operation.kind == "AllGather":
            statistics += link.all_gather(ranks, size)
            sums += ranks * size / rate
        elif ranks * size <= GATHERED:
            gradients += link.all_gather(ranks, size)
            sums += ranks * size / rate
        else:
            part = math.ceil(size / ranks)
            gradients += link.all_to_all(ranks, part) + link.all_gather(ranks, part)
            sums += size / rate
    return Times(compute, headers, statistics, gradients, sums)


def limit(efficiencies: dict[int, float], bound: float) -> str:
    """The largest number of ranks up to which the efficiency is at least ``bound``."""
    below = [ranks for ranks, efficiency in efficiencies.items() if efficiency < bound]
    within = [ranks for ranks in efficiencies if not below or ranks < min(below)]
    return f"{'up to' if below else 'at least to'} {max(within)} rank{'s' * (max(within) > 1)}"


def report(exchanges: list[Operation], link: Link, compute: float, ranks: list[int], rate: float) -> None:
    print(f"\n{link.name}: {link.latency * 1e6:g} us, {link.bandwidth / 1e9:g} GB/s; computation {compute:g} s\n")
    print("| ranks | step, s | headers | statistics | gradients | sums | efficiency |")
    print("|---|---|---|---|---|---|---|")
    efficiencies = {}
    for count in ranks:
        taken = times(exchanges, link, count, compute, rate)
        efficiencies[count] = compute / sum(taken)
        cells = " | ".join(f"{part:.3f}" for part in taken[1:])
        print(f"| {count} | {sum(taken):.3f} | {cells} | {efficiencies[count]:.1%} |")
    print(f"\n80 % {limit(efficiencies, 0.8)}, 50 % {limit(efficiencies, 0.5)}")


def print_rates() -> None:
    """Prints the rates at which the library adds values of several ranks, without the time of their exchange."""
    print("| ranks | merging moments, GB/s | sums of gradients of batch norms | AllReduce |")
    print("|---|---|---|---|")
    for ranks in (2, 16, 64, 256, 1024):
        ways = merging_moments(ranks), adding_sums(ranks), reducing(ranks)
        print(f"| {ranks} | {' | '.join(f'{size / fastest(way) / 1e9:.1f}' for way, size in ways)} |")


def fastest(way: Callable[[], float]) -> float:
    """The least time of some calls: other programs only add to it."""
    return min(way() for _ in range(20))


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def merging_moments(ranks: int, channels: int = 512) -> tuple[Callable[[], float], int]:
    gathered, running = np.ones((ranks, 3, channels)), np.ones(channels)
    arguments = (gathered, running, running, 1e-5, 0.9, False)
    return lambda: timed(lambda: native.batch_normalization_merge_moments(*arguments)), gathered.nbytes


def adding_sums(ranks: int, channels: int = 512) -> tuple[Callable[[], float], int]:
    gathered, x = np.ones((ranks, 2, channels)), np.ones((1, channels), np.float32)
    arguments = (x, x, x[0], np.ones(channels), np.ones(channels), gathered, np.array(1.0), (0,))
    return lambda: timed(lambda: native.batch_normalization_grad_apply(*arguments)), gathered.nbytes


def reducing(ranks: int) -> tuple[Callable[[], float], int]:
    """AllReduce of 4 MB with a function that exchanges nothing, without the time of that function."""
    value = np.ones(1 << 20, np.float32)
    exchanging = 0.0

    def exchange(_context, operation, send, receive, size, error, _error_size):
        nonlocal exchanging
        start = time.perf_counter()
        if operation == 0 and size == HEADER:
            for rank in range(ranks):
                ctypes.memmove(receive + rank * size, send, size)
        else:
            ctypes.memset(receive, 0, ranks * size)
        ctypes.memset(error, 0, 1)
        exchanging += time.perf_counter() - start
        return 0

    function = Function(exchange)

    def reduce() -> float:
        nonlocal exchanging
        exchanging = 0.0
        native_library.call("bngrad_set_collective", function, None, 0, ranks)
        total = timed(lambda: native.all_reduce(value, "gradients"))
        native_library.call("bngrad_set_collective", None, None, 0, 1)
        return total - exchanging

    return reduce, value.nbytes


def link(text: str, overhead: float) -> Link:
    """A link from NAME:MICROSECONDS:GIGABYTES_A_SECOND and the microseconds of the overhead."""
    name, latency, bandwidth = text.split(":")
    return Link(name, float(latency) * 1e-6, float(bandwidth) * 1e9, overhead * 1e-6)


LINKS = ["10 GbE, TCP:25:1.15", "100 GbE, TCP:15:6", "100 GbE, RDMA:3:11.5"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", type=Path, nargs="?", help="a step that was made with --sync")
    parser.add_argument("--link", action="append", help="NAME:MICROSECONDS:GIGABYTES_A_SECOND; may be repeated")
    parser.add_argument("--compute", type=float, action="append", help="seconds of a step on one machine")
    parser.add_argument("--overhead", type=float, default=20.0, help="microseconds of the transport an exchange")
    parser.add_argument("--rate", type=float, default=8.0, help="GB/s at which exchanged values are added")
    parser.add_argument("--measure", action="store_true", help="print the rates of this machine instead")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2**k for k in range(11)])
    options = parser.parse_args()
    if options.measure or options.step is None:
        print_rates()
        return
    exchanges = operations(onnx.load(options.step, load_external_data=False))
    gathered = [operation.size for operation in exchanges if operation.kind == "AllGather"]
    reduced = [operation.size for operation in exchanges if operation.kind == "AllReduce"]
    print(
        f"{len(gathered)} AllGather of {sum(gathered):,} bytes, {len(reduced)} AllReduce of {sum(reduced):,} bytes"
    )
    for network in (link(text, options.overhead) for text in options.link or LINKS):
        for compute in options.compute or [1.0, 0.1]:
            report(exchanges, network, compute, options.ranks, options.rate * 1e9)


if __name__ == "__main__":
    main()
