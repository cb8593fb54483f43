"""Running statistics from the moments of data, and how far the old ones were off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from bngrad.errors import InputError
from bngrad.training.moments import merge_moments, variance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]

MEAN_SHIFT, STD_RATIO = 0.5, 1.5
"""The limits beyond which statistics were far off."""


@dataclass(frozen=True)
class ReestimatedStatistics:
    """The new running statistics of a batch norm, compared with the old ones."""

    name: str
    """The batch norm."""
    elements: int
    """The number of values of a channel that the statistics are of."""
    mean_shift: float
    """The largest distance of an old mean from the new one, in new standard deviations."""
    std_ratio: float
    """The largest factor, 1 or more, between an old and a new standard deviation; both include epsilon."""

    @property
    def far_off(self) -> bool:
        """True if a mean was off by more than 0.5 deviations, or a deviation by a factor of more than 1.5."""
        return not (self.mean_shift <= MEAN_SHIFT and self.std_ratio <= STD_RATIO)


class Normalized(NamedTuple):
    """A batch norm whose statistics are estimated."""

    key: str
    """Its unique name in the graph of the moments."""
    name: str
    """Its name in messages and patterns."""
    epsilon: float
    mean: str
    """The name of its running mean."""
    var: str
    """The name of its running variance."""


class Moments:
    """The moments of several batches.

    Args:
        batch_norms: The batch norms.
        of: What the moments are of: the input of a ``batch norm``, which normalizes each batch, or the output of a
            ``layer``.
    """

    def __init__(
        self, batch_norms: Sequence[Normalized], *, of: Literal["batch norm", "layer"] = "batch norm"
    ) -> None:
        self._of = of
        self._names = {batch_norm.key: batch_norm.name for batch_norm in batch_norms}
        self.totals: dict[str, Array] = {}
        """The moments of all batches, by the keys of the batch norms."""
        self.batches = 0
        """The number of batches."""

    def add(self, moments: Mapping[str, Array]) -> None:
        """Adds the moments of a batch.

        Raises:
            InputError: A channel has one value, which a batch norm would normalize to 0, or a value is not finite.
        """
        for key, batch in moments.items():
            if not np.isfinite(batch).all():
                side = "input" if self._of == "batch norm" else "output"
                raise InputError(
                    f"the {side} of {self._of} {self._names[key]!r} is not finite in batch {self.batches + 1}; "
                    "expected finite data and weights"
                )
            if self._of == "batch norm" and batch[0].min(initial=2) < 2:
                raise InputError(
                    f"batch norm {self._names[key]!r} has one value for each channel in batch {self.batches + 1}, "
                    "which its own statistics normalize to 0; expected at least 2: give larger batches"
                )
            self.totals[key] = merge_moments([self.totals[key], batch] if key in self.totals else [batch])
        self.batches += 1

    def require_batches(self) -> None:
        """Refuses to estimate statistics from nothing, or a variance from one value.

        Raises:
            InputError: There was no batch, or one value for each channel in all.
        """
        if not self.batches:
            raise InputError("there is no batch to estimate running statistics from; expected at least one")
        for key, total in self.totals.items():
            if total[0].min(initial=2) < 2:
                raise InputError(
                    f"{self._of} {self._names[key]!r} has one value for each channel in all data, whose variance "
                    "is 0; expected at least 2: give more samples"
                )


def new_statistics(
    batch_norms: Sequence[Normalized],
    moments: Mapping[str, Array],
    old: Mapping[str, Array],
    unbiased: Mapping[str, bool],
) -> tuple[dict[str, Array], list[ReestimatedStatistics]]:
    """Returns the new running statistics by name, in the types of the old ones, and the comparison.

    A statistic that several batch norms read is that of the union of their inputs.

    Args:
        batch_norms: The batch norms.
        moments: The moments of their inputs, by key.
        old: The old statistics, by name.
        unbiased: Whether a batch norm's running variance is the unbiased one, by key.

    Raises:
        InputError: A statistic does not fit into its type.
    """
    readers: dict[str, list[Normalized]] = {}
    for batch_norm in batch_norms:
        for name in (batch_norm.mean, batch_norm.var):
            readers.setdefault(name, []).append(batch_norm)
    totals = {name: merge_moments([moments[norm.key] for norm in norms]) for name, norms in readers.items()}
    values, results = {}, []
    for norm in batch_norms:
        mean, var = totals[norm.mean][1], variance(totals[norm.var], unbiased=unbiased[norm.key])
        for name, value in ((norm.mean, mean), (norm.var, var)):
            values[name] = in_type(value, old[name], norm.name)
        was_mean, was_var = (old[name].astype(np.float64) for name in (norm.mean, norm.var))
        with np.errstate(all="ignore"):
            std, was_std = np.sqrt(var + norm.epsilon), np.sqrt(was_var + norm.epsilon)
            shift = np.max(np.abs(was_mean - mean) / std, initial=0)
            ratio = np.max(np.maximum(was_std / std, std / was_std), initial=1)
        count = int(totals[norm.mean][0].max(initial=0))
        results.append(ReestimatedStatistics(norm.name, count, float(shift), float(ratio)))
    return values, results


def in_type(value: Array, old: Array, name: str) -> Array:
    """Returns a statistic in the type and shape of another array.

    Raises:
        InputError: It does not fit into the type; the message has the name of the batch norm.
    """
    with np.errstate(over="ignore"):
        result: Array = value.reshape(old.shape).astype(old.dtype)
    if not np.isfinite(result.astype(np.float64)).all():
        raise InputError(
            f"the running statistics of batch norm {name!r} are up to {np.abs(value).max():.3g}, beyond the range "
            f"of {old.dtype}; expected data or weights of another scale"
        )
    return result
