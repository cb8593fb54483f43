"""Measures a case, and the memory bandwidth for arrays of its size."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypedDict

from bngrad.bench.prepared import PreparedCase
from bngrad.bench.session_case import SessionCase
from bngrad.bench.timing import Spread, run_trial, time_interleaved
from bngrad.runtime.device import CPU, Device

if TYPE_CHECKING:
    from collections.abc import Callable

    from bngrad.bench.case import Case

ADDITION_ARRAYS = 3
"""The number of arrays of X's size that the addition c = a + b, which measures the bandwidth, reads or writes."""


class BandwidthDocument(TypedDict):
    """The memory bandwidth for arrays of X's size, measured by the addition c = a + b."""

    bytes: int
    """The bytes that the addition reads and writes."""
    ms: dict[str, float]
    """The quartiles of its time in milliseconds: low, median and high."""
    gb_per_s: float
    """The bandwidth in 10^9 bytes per second."""


class MeasurementDocument(TypedDict):
    """A row of the document of ``bngrad bench --json``."""

    shape: list[int]
    """The shape of X."""
    axes: list[int]
    """The reduction axes."""
    dtype: str
    """The element type of X."""
    op: str
    """The op, by its name on the command line."""
    frozen: bool
    """True if the statistics are constants."""
    count: int
    """The number of batch norms of the model that have this case; 1 for a shape given by the user."""
    bytes: int
    """The bytes that the op has to read and write, each array of X's size counted once."""
    ms: dict[str, float]
    """The quartiles of the op's time in milliseconds: low, median and high."""
    gb_per_s: float
    """The throughput of the op in 10^9 bytes per second."""
    bandwidth: BandwidthDocument
    """The memory bandwidth."""
    bandwidth_fraction: float
    """The throughput over the bandwidth; above 1 if the op's arrays stay in the caches."""


@dataclass(frozen=True)
class Measurement:
    """The times of a case."""

    case: Case
    count: int
    """The number of batch norms of the model with this case; 1 for a shape given by the user."""
    kernel: Spread
    """The time of the op."""
    addition: Spread
    """The time of the addition of arrays of X's size."""

    @property
    def gb_per_s(self) -> float:
        """The throughput of the op in 10^9 bytes per second, each array of X's size counted once."""
        return self.case.moved_bytes / self.kernel.median / 1e9

    @property
    def bandwidth_gb_per_s(self) -> float:
        """The memory bandwidth in 10^9 bytes per second, from the addition."""
        return ADDITION_ARRAYS * self.case.data_bytes / self.addition.median / 1e9

    @property
    def bandwidth_fraction(self) -> float:
        """The throughput over the bandwidth; above 1 if the op's arrays stay in the caches."""
        return self.gb_per_s / self.bandwidth_gb_per_s

    def to_dict(self) -> MeasurementDocument:
        """Returns a row of the output of ``--json``."""
        case = self.case
        return {
            "shape": list(case.shape),
            "axes": list(case.axes),
            "dtype": case.dtype,
            "op": case.op,
            "frozen": case.frozen,
            "count": self.count,
            "bytes": case.moved_bytes,
            "ms": self.kernel.in_ms(),
            "gb_per_s": self.gb_per_s,
            "bandwidth": {
                "bytes": ADDITION_ARRAYS * case.data_bytes,
                "ms": self.addition.in_ms(),
                "gb_per_s": self.bandwidth_gb_per_s,
            },
            "bandwidth_fraction": self.bandwidth_fraction,
        }


def measure(case: Case, *, count: int = 1, threads: int = 0, repeats: int = 21, device: str = CPU) -> Measurement:
    """Times a case and the addition of arrays of the same size, in interleaved trials.

    Args:
        case: The case to time.
        count: The count of the result.
        threads: Number of threads per call; 0 for one per CPU.
        repeats: Number of trials of each; at least 1.
        device: The device. On the CPU the library's functions are timed, elsewhere sessions of ONNX Runtime.

    Raises:
        InputError: The arrays do not fit into the machine's memory.
        LibraryError: The library is missing, cannot be loaded, or failed.
        DeviceError: The device does not exist, or is out of memory.
        UnsupportedNodeError: The library has no kernel of the op for the device.
    """
    on_cpu = Device.of(device).kind == CPU
    prepared = PreparedCase(case, threads=threads) if on_cpu else SessionCase(case, device)
    trials = {
        name: partial(_seconds_of_run, call, prepared.runs)
        for name, call in {"kernel": prepared.kernel, "addition": prepared.addition}.items()
    }
    return Measurement(case, count, **time_interleaved(trials, repeats))


def _seconds_of_run(call: Callable[[], object], runs: int, calls: int) -> float:
    return run_trial(call, calls) / runs
