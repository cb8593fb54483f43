"""Moments of a batch norm's input: count, mean and M2 = sum (X - mean)^2, [3, C], merged in double.

Merged moments are those of the union of the data, whatever the sizes of the parts (law of total variance; Chan,
Golub and LeVeque, 1979).
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Array = NDArray[Any]


def merge_moments(parts: Iterable[Array]) -> Array:
    """Returns the moments of the union of one or more parts, [3, C] each."""
    return reduce(_merged, parts)


def variance(moments: Array, *, unbiased: bool = False) -> Array:
    """Returns the variance of each channel; the unbiased one is M2 / max(count - 1, 1)."""
    count, _, squares = moments
    quotient: Array = squares / (np.maximum(count - 1, 1) if unbiased else count)
    return quotient


def _merged(first: Array, second: Array) -> Array:
    count = first[0] + second[0]
    with np.errstate(invalid="ignore", over="ignore"):  # data that are not finite are refused where it is named
        share = second[0] / count
        distance = second[1] - first[1]
        squares = first[2] + second[2] + distance * distance * first[0] * share
        return np.stack([count, first[1] + distance * share, squares])
