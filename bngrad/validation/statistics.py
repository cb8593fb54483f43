"""Statistics of the tensors of the worst nodes, which are needed first when a comparison fails."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    Array = NDArray[Any]
    Tensors = Iterable[tuple[str, str, Array]]
    """The role, the name and the value of each tensor."""

MOST = 10
"""Number of subjects of a check whose tensors are described."""


@dataclass(frozen=True)
class TensorStatistics:
    """Statistics of a tensor. ``minimum`` to ``std`` are of its finite elements, and None if it has none."""

    role: str
    """``input``, ``expected``, or ``computed by`` an implementation."""
    name: str
    """The name of the tensor."""
    dtype: str
    """NumPy's name of the type."""
    shape: list[int]
    """The sizes of its dimensions."""
    minimum: float | None
    """The smallest element."""
    maximum: float | None
    """The largest element."""
    mean: float | None
    """The mean."""
    std: float | None
    """The standard deviation."""
    zeros: int
    """The number of zeros."""
    nan: int
    """The number of NaN."""
    infinite: int
    """The number of infinities."""


class WorstSubjects:
    """Keeps the statistics of the `MOST` subjects with the largest measures; NaN counts as the largest."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[float, list[TensorStatistics]]] = {}

    def offer(self, subject: str, measure: float, tensors: Callable[[], Tensors]) -> None:
        """Describes the tensors of a subject if its measure is among the largest.

        Args:
            subject: The node or graph output.
            measure: The measure of its comparison.
            tensors: Returns the tensors; called if they are described.
        """
        rank = math.inf if math.isnan(measure) else measure
        if subject in self._kept:
            if rank <= self._kept[subject][0]:
                return
        elif len(self._kept) == MOST:
            least = min(self._kept, key=lambda name: self._kept[name][0])
            if rank <= self._kept[least][0]:
                return
            del self._kept[least]
        self._kept[subject] = rank, [tensor_statistics(*tensor) for tensor in tensors()]

    def worst_first(self) -> dict[str, list[TensorStatistics]]:
        """Returns the statistics by subject, the one with the largest measure first."""
        ordered = sorted(self._kept.items(), key=lambda item: -item[1][0])
        return {subject: statistics for subject, (_, statistics) in ordered}


def expected_and_computed(name: str, expected: Array, computed: Array, by: str) -> Tensors:
    """Returns the two values of an output, for `WorstSubjects.offer`."""
    return [("expected", name, expected), (f"computed by {by}", name, computed)]


def tensor_statistics(role: str, name: str, value: Array) -> TensorStatistics:
    """Returns the statistics of an array of numbers or booleans; of other arrays, only the type and shape."""
    dtype, shape = str(value.dtype), list(value.shape)
    if value.dtype.kind not in "fiub":
        if value.dtype.kind in "OSU":
            return TensorStatistics(role, name, dtype, shape, None, None, None, None, 0, 0, 0)
        value = value.astype(np.float32)  # bfloat16
    finite = np.isfinite(value)
    nan = int(np.isnan(value).sum())
    zeros, infinite = value.size - int(np.count_nonzero(value)), value.size - int(finite.sum()) - nan
    numbers = value.reshape(-1) if finite.all() else value[finite]
    if not numbers.size:
        return TensorStatistics(role, name, dtype, shape, None, None, None, None, zeros, nan, infinite)
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = float(numbers.mean(dtype=np.float64)), float(numbers.std(dtype=np.float64))
    return TensorStatistics(
        role, name, dtype, shape, float(numbers.min()), float(numbers.max()), mean, std, zeros, nan, infinite
    )
