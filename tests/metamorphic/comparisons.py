"""Comparisons of two runs: pairs of arrays, each with the difference that rounding may cause."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Comparison(NamedTuple):
    """An array, the expected one, and the largest difference that rounding may cause."""

    name: str
    got: np.ndarray
    expected: np.ndarray
    tolerance: np.ndarray | float = 0.0


def check(comparison):
    """Asserts that the difference is within the tolerance and that no number is NaN or infinite."""
    got, expected = np.asarray(comparison.got, np.float64), np.asarray(comparison.expected, np.float64)
    assert got.shape == expected.shape, comparison.name
    assert np.isfinite(got).all(), comparison.name
    excess = np.abs(got - expected) - np.broadcast_to(comparison.tolerance, got.shape)
    assert (excess <= 0).all(), (
        f"{comparison.name}: off by {np.max(np.abs(got - expected))}, {np.max(excess)} too much"
    )


def exactly(got, expected, prefix=""):
    """Returns comparisons of outputs by name that must be equal bit for bit."""
    return [Comparison(f"{prefix} {name}".strip(), got[name], expected[name]) for name in expected]
