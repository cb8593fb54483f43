"""A case and its roof, measured."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from bngrad.bench.prepared import PreparedCase
from bngrad.bench.timing import Spread, run_turn, take_turns

if TYPE_CHECKING:
    from bngrad.bench.case import Case

ROOF_ARRAYS = 3
"""The arrays of X's size that the roof, c = a + b, reads or writes."""


@dataclass(frozen=True)
class Measurement:
    """What a case took."""

    case: Case
    count: int
    """How many batch norms of the model it stands for; 1 for a shape that was given."""
    kernel: Spread
    roof: Spread

    @property
    def gb_per_s(self) -> float:
        """10^9 bytes a second that the kernel moved, each array of X's size counted once."""
        return self.case.moved_bytes / self.kernel.median / 1e9

    @property
    def roof_gb_per_s(self) -> float:
        """The same for the addition of arrays."""
        return ROOF_ARRAYS * self.case.data_bytes / self.roof.median / 1e9

    @property
    def of_roof(self) -> float:
        """The one by the other; above 1 where arrays stay in the caches, which the addition goes past."""
        return self.gb_per_s / self.roof_gb_per_s

    def to_dict(self) -> dict[str, Any]:
        """Returns a row of what ``--json`` prints."""
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
            "roof": {
                "bytes": ROOF_ARRAYS * case.data_bytes,
                "ms": self.roof.in_ms(),
                "gb_per_s": self.roof_gb_per_s,
            },
            "of_roof": self.of_roof,
        }


def measure(case: Case, *, count: int = 1, threads: int = 0, repeats: int = 21) -> Measurement:
    """Times a case and its roof in turns.

    Args:
        case: What to time.
        count: Handed on to the result.
        threads: How many threads each call uses; 0 for one per CPU.
        repeats: How many turns each has; at least 1.

    Raises:
        InputError: The arrays do not fit the machine's memory.
        LibraryError: The library is missing, cannot be loaded, or failed.
    """
    prepared = PreparedCase(case, threads=threads)
    ways = {"kernel": partial(run_turn, prepared.kernel), "roof": partial(run_turn, prepared.roof)}
    return Measurement(case, count, **take_turns(ways, repeats))
