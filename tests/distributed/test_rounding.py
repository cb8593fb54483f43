"""Statistics that ranks merge differ from those of one process by a bound of docs/guides/distributed.md.

With u = 2^-53, k = ceil(log2 R) for R ranks, L the most additions that a term of a sum passes through, the mean m,
the standard deviation s, the counts n_r and means m_r of the ranks, D = sum n_r |m_r - m_0| / n and
B = sum n_r (m_r - m)^2 / n, to first order in u::

    |mean of R ranks - mean of one process| <= u (3 |m| + (2 L + 5) s + (k + 3) D)
    |variance of R ranks - variance of one process| <= u ((3 L + k + 20) s^2 + 2 |m| sqrt(B))

A rank's mean is a sum about a center near it, so its error is u (|m_r| + (L + 2) s_r), whatever |m|/s is. Merging
adds the rounding of differences, products, a tree of k levels, a division and the last sum. In the variance, M2
has the relative error (L + 4) u, and the errors of the m_r meet with m_r - m.
"""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from bngrad.runtime import native

AXES = (0, 2, 3)
U = 2.0**-53
MOST_ADDITIONS = 1100
ROWS = 24


def normal(rng, mean=0.0):
    return rng.standard_normal((ROWS, 3, 4, 4)) + np.reshape([mean, -mean, mean / 3], (1, 3, 1, 1))


DATA = {
    "around-zero": normal,
    "mean-of-1000-deviations": lambda rng: normal(rng, 1000.0),
    "mean-of-a-million-deviations": lambda rng: normal(rng, 1e6),
    "sorted-rows": lambda rng: np.sort(normal(rng, 3.0), axis=0),
    "a-first-row-far-away": lambda rng: normal(rng, 3.0) + 1e4 * (np.arange(ROWS) == 0).reshape(-1, 1, 1, 1),
    "a-large-element": lambda rng: np.where(rng.random((ROWS, 3, 4, 4)) < 0.002, 1e6, normal(rng)),
}
SPLITS = {
    "2-even": [12, 12],
    "4-even": [6] * 4,
    "24-even": [1] * ROWS,
    "3-uneven": [1, 20, 3],
    "5-uneven": [13, 1, 5, 1, 4],
    "an-empty-rank": [10, 0, 14],
    "an-empty-first-rank": [0, 10, 14],
}


def merged(parts):
    """Mean and variance, in double, of parts of a batch."""
    moments = np.stack([native.batch_normalization_moments(part, AXES)[0] for part in parts])
    zero = np.zeros(3)
    _, variance, mean, *_ = native.batch_normalization_merge_moments(moments, zero, zero, 0.0, 0.0, False)
    return mean, variance


def exact(x):
    """Mean and variance of each channel, rounded once."""
    channels = [[Fraction(float(value)) for value in x[:, c].ravel()] for c in range(3)]
    means = [sum(values) / len(values) for values in channels]
    variances = [
        sum((value - mean) ** 2 for value in values) / len(values)
        for values, mean in zip(channels, means, strict=True)
    ]
    return np.array(means, np.float64), np.array(variances, np.float64)


def bounds(parts):
    """The bounds of the difference of the means and of the variances."""
    whole = np.concatenate(parts)
    mean, variance = whole.mean(AXES), whole.var(AXES)
    weights = np.array([len(part) for part in parts]) / len(whole)
    means = np.stack([part.mean(AXES) if len(part) else np.zeros(3) for part in parts])
    spread = weights @ np.abs(means - means[0])
    between = weights @ np.square(means - mean)
    levels = np.ceil(np.log2(len(parts)))
    additions = min(MOST_ADDITIONS, whole[:, 0].size)
    return (
        U * (3 * np.abs(mean) + (2 * additions + 5) * np.sqrt(variance) + (levels + 3) * spread),
        U * ((3 * additions + levels + 20) * variance + 2 * np.abs(mean) * np.sqrt(between)),
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
def test_a_split_changes_the_last_bits_of_a_double(rng, data, split, dtype):
    x = data(rng).astype(dtype)
    parts = np.split(x, list(itertools.accumulate(split))[:-1])
    (mean, variance), (whole_mean, whole_variance) = merged(parts), merged([x])
    of_mean, of_variance = bounds([part.astype(np.float64) for part in parts])
    assert np.all(np.abs(mean - whole_mean) <= of_mean)
    assert np.all(np.abs(variance - whole_variance) <= of_variance)
    # Both are near the truth, and not only near each other.
    true_mean, true_variance = exact(x)
    assert np.all(np.abs(mean - true_mean) <= of_mean)
    assert np.all(np.abs(variance - true_variance) <= of_variance)


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_rounded_to_float_they_are_neighbours(rng, split):
    x = normal(rng, 3.0).astype(np.float32)
    parts = np.split(x, list(itertools.accumulate(split))[:-1])
    for actual, other in zip(merged(parts), merged([x]), strict=True):
        expected = other.astype(np.float32)
        assert np.all(np.abs(actual.astype(np.float32) - expected) <= np.spacing(np.abs(expected)))


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_exact_inputs_in_equal_parts_give_equal_bits(rng, ranks):
    """Sums of small integers are exact, and so are quotients by powers of two."""
    x = rng.integers(-8, 9, (16, 3, 4, 4)).astype(np.float32)
    for actual, other in zip(merged(np.split(x, ranks)), merged([x]), strict=True):
        assert actual.tobytes() == other.tobytes()


def test_the_bounds_are_those_of_a_double(rng):
    """They would find sums in float, or a variance as the difference of two large numbers."""
    x = normal(rng, 1000.0).astype(np.float32)
    of_mean, of_variance = bounds([part.astype(np.float64) for part in np.split(x, 2)])
    whole_mean, whole_variance = merged([x])
    in_float = x.mean(AXES)
    squares = np.square(x, dtype=np.float64).mean(AXES) - np.square(whole_mean)
    assert np.all(np.abs(in_float - whole_mean) > 100 * of_mean)
    assert np.all(np.abs(squares - whole_variance) > of_variance)
