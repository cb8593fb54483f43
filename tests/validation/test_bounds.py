"""The derived bounds: wide enough for a right float32 implementation, tight enough for a small mistake."""

from __future__ import annotations

import numpy as np
import pytest

from bngrad.validation import bounds

UNIT = 2.0**-24
SHAPES = [(4, 3), (2, 5, 7), (8, 16, 28, 28), (2, 3, 4, 5, 6), (1, 4, 112, 112)]


def inputs(shape, mean, seed=0):
    rng = np.random.default_rng(seed)
    channels = shape[1]
    x = (rng.normal(size=shape) + mean).astype(np.float32)
    dy = rng.normal(size=shape).astype(np.float32)
    scale, bias = (rng.uniform(0.5, 1.5, channels).astype(np.float32) for _ in range(2))
    axes = (0, *range(2, len(shape)))
    saved_mean = x.mean(axis=axes, dtype=np.float64).astype(np.float32)
    inv_std = (1 / np.sqrt(x.var(axis=axes, dtype=np.float64) + 1e-5)).astype(np.float32)
    return x, dy, scale, bias, saved_mean, inv_std, axes


def wide(*arrays):
    return [array.astype(np.float64) for array in arrays]


def float32_gradients(x, dy, scale, mean, inv_std, axes):
    """Every step in float32, with NumPy's sums."""
    kept = tuple(1 if d in axes else e for d, e in enumerate(x.shape))
    xhat = (x - mean.reshape(kept)) * inv_std.reshape(kept)
    dbias, dscale = dy.sum(axis=axes), (dy * xhat).sum(axis=axes)
    count = np.float32(x.size // scale.size)
    through = (dbias.reshape(kept) + xhat * dscale.reshape(kept)) / count
    return (scale * inv_std).reshape(kept) * (dy - through), dscale, dbias


@pytest.mark.parametrize("mean", [0, 1000], ids=["centered", "mean-1000"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_float32_arithmetic_is_within_the_bounds(shape, mean):
    x, dy, scale, _, saved_mean, inv_std, axes = inputs(shape, mean)
    expected = bounds.gradients(*wide(dy, x, scale, saved_mean, inv_std), axes, training_mode=True, unit=UNIT)
    for got, (value, bound) in zip(
        float32_gradients(x, dy, scale, saved_mean, inv_std, axes), expected, strict=True
    ):
        assert np.all(np.abs(got - value) <= bound)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_error_of_1e_4_in_a_channel_is_not(shape):
    x, dy, scale, _, saved_mean, inv_std, axes = inputs(shape, 0)
    (value, bound), *_ = bounds.gradients(
        *wide(dy, x, scale, saved_mean, inv_std), axes, training_mode=True, unit=UNIT
    )
    wrong = value.copy()
    wrong[:, 1] *= 1 + 1e-4
    beyond = np.abs(wrong - value) > bound
    assert beyond[:, 1].any()
    assert not np.delete(beyond, 1, axis=1).any()


@pytest.mark.parametrize("mean", [0, 30], ids=["centered", "mean-30"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_float32_forward_pass_is_within_the_bounds(shape, mean):
    x, _, scale, bias, _, _, axes = inputs(shape, mean)
    old = np.ones_like(scale)
    kept = tuple(1 if d in axes else e for d, e in enumerate(shape))
    expected = bounds.normalized(*wide(x, scale, bias, old, old), epsilon=1e-5, momentum=0.9, unit=UNIT)
    batch_mean = x.mean(axis=axes, dtype=np.float32)
    centered = x - batch_mean.reshape(kept)
    var = (centered * centered).mean(axis=axes, dtype=np.float32)
    inv_std = 1 / np.sqrt(var + np.float32(1e-5))
    y = centered * (inv_std * scale).reshape(kept) + bias.reshape(kept)
    keep, new = np.float32(0.9), np.float32(1) - np.float32(0.9)
    results = (y, keep * old + new * batch_mean, keep * old + new * var, batch_mean, inv_std)
    for got, (value, bound) in zip(results, expected, strict=True):
        assert np.all(np.abs(got - value) <= bound + 1e-30)
