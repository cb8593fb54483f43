"""The reduction axes of the ops, and the shape that they leave for parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bngrad.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

MAX_RANK = 8
"""The highest rank of X that the ops support."""


def normalize_axes(axes: ArrayLike, rank: int) -> tuple[int, ...]:
    """Returns axes in ascending order and non-negative.

    Args:
        axes: The reduction axes, each in [-rank, rank), without duplicates.
        rank: The rank of X, 1 to `MAX_RANK`.

    Raises:
        InputError: The rank or an axis is out of range, or an axis occurs twice.
    """
    if not 1 <= rank <= MAX_RANK:
        raise InputError(f"X has {rank} dimensions; expected 1 to {MAX_RANK}")
    integers = [int(axis) for axis in np.asarray(axes, dtype=np.int64).reshape(-1)]
    for axis in integers:
        if not -rank <= axis < rank:
            raise InputError(f"axis {axis} is out of range for X of rank {rank}; expected {-rank} to {rank - 1}")
    unique = {axis % rank for axis in integers}
    if len(unique) != len(integers):
        raise InputError(f"axes {integers} name a dimension of X twice; name each reduced dimension once")
    return tuple(sorted(unique))


def parameter_shape(x_shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape of scale, bias and the statistics: X's shape without the (normalized) axes."""
    return tuple(size for d, size in enumerate(x_shape) if d not in axes)
