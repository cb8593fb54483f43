"""What a relation says of two runs: pairs of arrays, each with the difference that rounding may make."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Due(NamedTuple):
    """What came, what is due, and the largest difference that rounding makes."""

    what: str
    got: np.ndarray
    want: np.ndarray
    allowed: np.ndarray | float = 0.0


def check(due):
    """Compares; numbers that are none fail, for no input here makes any."""
    got, want = np.asarray(due.got, np.float64), np.asarray(due.want, np.float64)
    assert got.shape == want.shape, due.what
    assert np.isfinite(got).all(), due.what
    excess = np.abs(got - want) - np.broadcast_to(due.allowed, got.shape)
    assert (excess <= 0).all(), f"{due.what}: off by {np.max(np.abs(got - want))}, {np.max(excess)} too much"


def exactly(got, want, what=""):
    """Dues of outputs by name that are equal to the last bit."""
    return [Due(f"{what} {name}".strip(), got[name], want[name]) for name in want]
