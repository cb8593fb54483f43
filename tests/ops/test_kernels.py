"""The ops on every instruction set against the float64 reference, and against each other bit for bit.

Bounds are on the error over the largest reference value: 1e-6 for float, 1e-14 for double. For double the
reference rounds as much as the kernels do, or more (NumPy adds up columns one after the other). So its inputs are
such that every sum is exact in any order: on a coarse grid, and X symmetric about a mean on that grid.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from bngrad import native, reference

BOUNDS = {np.dtype(np.float32): 1e-6, np.dtype(np.float64): 1e-14}
EPSILON, MOMENTUM = 1e-3, 0.9


class Case:
    """Inputs of all three ops for one shape."""

    def __init__(self, shape, axes, dtype=np.float32, *, mean=1.0, seed=0):
        self.axes = axes
        rng = np.random.default_rng([seed, *shape])
        positive = [axis % len(shape) for axis in axes]
        others = [i for i in range(len(shape)) if i not in positive]
        kept = [shape[i] for i in others]

        def draw(center, symmetric=False):
            reduced = [extent for i, extent in enumerate(shape) if i in positive]
            drawn = rng.normal(0, 1, (math.prod(kept), math.prod(reduced)))
            if dtype == np.float64:
                drawn = np.round(drawn * 8) / 8
                if symmetric:
                    half = drawn.shape[1] // 2
                    drawn[:, half:] = 0
                    drawn[:, half : 2 * half] = -drawn[:, :half]
                    drawn = rng.permuted(drawn, axis=1) if drawn.size < 10**6 else drawn
            drawn = np.moveaxis(drawn.reshape(kept + reduced), range(len(kept)), others)
            return np.ascontiguousarray(drawn + center, dtype).reshape(shape)

        def uniform():
            drawn = rng.uniform(0.5, 1.5, kept)
            return np.asarray(drawn if dtype == np.float32 else np.round(drawn * 64) / 64, dtype)

        self.x, self.dy = draw(mean, symmetric=True), draw(0.25)
        self.scale, self.bias, self.inv_std, self.running_var = (uniform() for _ in range(4))
        self.mean = (uniform() - 1 + mean).astype(dtype)
        self.running_mean = uniform()

    def grad(self, implementation, training, **options):
        function = getattr(implementation, "grad", None) or implementation.batch_normalization_grad
        return function(self.dy, self.x, self.scale, self.mean, self.inv_std, self.axes, training, **options)

    def training(self, implementation, unbiased=1, **options):
        function = getattr(implementation, "training", None) or implementation.batch_normalization_training
        arguments = (self.x, self.scale, self.bias, self.running_mean, self.running_var, self.axes)
        return function(*arguments, EPSILON, MOMENTUM, unbiased, **options)

    def statistics(self, implementation, **options):
        function = getattr(implementation, "statistics", None) or implementation.batch_normalization_statistics
        return function(self.x, self.axes, EPSILON, **options)

    def check(self, kernels):
        """Every output of every op against the reference."""
        for training in (0, 1):
            assert_close(self.grad(kernels, training), self.grad(reference, training), self.x.dtype)
        for unbiased in (0, 1):
            assert_close(self.training(kernels, unbiased), self.training(reference, unbiased), self.x.dtype)
        assert_close(self.statistics(kernels), self.statistics(reference), self.x.dtype)

    def everything(self, kernels, **options):
        outputs = [*self.grad(kernels, 0, **options), *self.grad(kernels, 1, **options)]
        return [*outputs, *self.training(kernels, **options), *self.statistics(kernels, **options)]


def assert_close(actual, expected, dtype):
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == dtype
        assert one.shape == other.shape
        if one.size == 0:
            continue
        np.testing.assert_array_equal(np.isnan(one), np.isnan(other))
        error = np.nanmax(np.abs(one - other), initial=0.0)
        assert error <= BOUNDS[dtype] * np.nanmax(np.abs(other), initial=0.0)


dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float", "double"])


def test_library_knows_this_machine():
    """A supported instruction set that is not found would only be skipped below."""
    isas = native.isas()
    assert list(isas)[-1] == "scalar"
    assert isas["scalar"]
    if sys.platform == "linux":
        flags = Path("/proc/cpuinfo").read_text().split()
        for isa, flag in (("avx2", "avx2"), ("avx512", "avx512f")):
            assert isas.get(isa, False) == (flag in flags)
    if native.ISA_VARIABLE not in os.environ:
        assert native.active_isa() == next(isa for isa, supported in isas.items() if supported)


@dtypes
@pytest.mark.parametrize("rank", range(1, 9))
def test_every_choice_of_axes(kernels, rank, dtype):
    shape = (3, 2, 4, 2, 3, 2, 2, 2)[:rank]
    for count in range(rank + 1):
        for axes in itertools.combinations(range(rank), count):
            Case(shape, axes, dtype).check(kernels)


@dtypes
@pytest.mark.parametrize("shape", [(3, 1, 5, 1, 2), (1, 4, 1, 3), (1, 1, 1), (1,)], ids=str)
def test_dimensions_of_extent_1(kernels, shape, dtype):
    for count in range(len(shape) + 1):
        for axes in itertools.combinations(range(len(shape)), count):
            Case(shape, axes, dtype).check(kernels)


# Edges: of a vector (16), of a strip of rows (4), of a tile of channels (64, from 2048 on), of a tile of columns
# (64, 1024), of a segment (16384 elements of a row, 256 or 1024 rows); primes; real spatial sizes.
LENGTHS = (*range(1, 34), 47, 48, 49, 63, 64, 65, 97, 127, 128, 129, 196, 1023, 1024, 1025)
ROWS = (1, 2, 7, 8, 9, 15, 16, 17, 255, 256, 257)


@dtypes
def test_row_lengths(kernels, dtype):
    for length in (*LENGTHS, 16383, 16384, 16385, 32771):
        Case((3, 2, length), (0, 2), dtype).check(kernels)


@dtypes
def test_channel_counts(kernels, dtype):
    for channels in (*LENGTHS[:40], 255, 256, 257, 271, 2047, 2048, 2111):
        Case((2, channels, 9), (0, 2), dtype).check(kernels)


@dtypes
@pytest.mark.parametrize("rows", ROWS)
def test_column_counts(kernels, rows, dtype):
    for columns in LENGTHS:
        Case((rows, columns), (0,), dtype).check(kernels)


@dtypes
def test_long_columns(kernels, dtype):
    for rows, columns in ((1023, 3), (1024, 64), (1025, 65), (2049, 31), (21505, 3), (70001, 1), (5000, 130)):
        Case((rows, columns), (0,), dtype).check(kernels)


@dtypes
def test_outer_dimensions(kernels, dtype):
    """Patterns that take several blocks a segment, in both families, with remainders everywhere."""
    for shape, axes in (
        ((5, 3, 7, 4, 19), (0, 2, 4)),
        ((5, 3, 7, 4, 19), (1, 3)),
        ((3, 70, 5, 1100), (1,)),
        ((3, 70, 5, 1100), (0, 2)),
        ((301, 3, 11, 5), (0, 2)),
        ((41, 2, 401, 3), (0, 2)),
        ((9, 2, 3, 16400), (0, 3)),
        ((2, 40, 3, 50), (0, 2, 3)),
    ):
        Case(shape, axes, dtype).check(kernels)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((3, 7, 150001), (0, 2)), ((33000, 64), (0,)), ((33000, 65), (0,)), ((50, 70, 700), (0, 2))],
    ids=str,
)
def test_outputs_too_large_for_the_cache(kernels, shape, axes):
    """8 MiB and more: stores go past the cache, where a row has whole cache lines."""
    Case(shape, axes).check(kernels)


@pytest.mark.parametrize("spatial", [49, 196, 784, 3136])
def test_resnet_shapes(kernels, spatial):
    Case((8, 32, spatial), (0, 2)).check(kernels)
    Case((8, spatial, 32), (0, 1)).check(kernels)


@pytest.mark.parametrize(("shape", "axes"), [((32, 4, 3136), (0, 2)), ((32, 1000, 4), (0, 1))], ids=str)
def test_mean_of_1000(kernels, shape, axes):
    case = Case(shape, axes, mean=1000.0)
    mean, inv_std = case.statistics(native)
    case.mean, case.inv_std = mean, inv_std
    case.check(kernels)


@pytest.mark.parametrize(("shape", "axes"), [((16, 4, 100), (0, 2)), ((1600, 4), (0,))], ids=str)
def test_gradient_about_1000(kernels, shape, axes):
    """Batch statistics take the mean of dY away: dX must be as exact as what is left is small."""
    case = Case(shape, axes)
    case.dy += np.float32(1000)
    case.mean, case.inv_std = case.statistics(native)
    assert_close(case.grad(kernels, 1), case.grad(reference, 1), case.x.dtype)


def test_ten_million_to_one(kernels):
    case = Case((10**7,), (0,))
    assert_close(case.grad(kernels, 1), case.grad(reference, 1), case.x.dtype)
    assert_close(case.training(kernels), case.training(reference), case.x.dtype)


@pytest.mark.long
@dtypes
@pytest.mark.parametrize(("shape", "axes"), [((10**7, 2), (0,)), ((10, 2, 1000, 1000), (0, 2, 3))], ids=str)
def test_ten_million_to_one_of_two(kernels, shape, axes, dtype):
    Case(shape, axes, dtype).check(kernels)


# The same bits.

SAME_BITS = [
    ((2, 3, 5), (0, 2)),
    ((8, 64, 20, 20), (0, 2, 3)),  # rows, a tile at a time
    ((8, 3, 100, 100), (0, 2, 3)),  # rows, in phases
    ((5, 17, 49), (0, 2)),
    ((4, 24, 24, 48), (0, 1, 2)),  # columns, in phases
    ((60000, 3), (0,)),  # columns, folded
    ((16, 3000), (0,)),  # columns, a tile at a time
    ((7, 5, 40, 9, 11), (0, 2, 4)),
]
same_bits = pytest.mark.parametrize(("shape", "axes"), SAME_BITS, ids=str)


def digest(arrays):
    return [hashlib.sha256(a.tobytes()).hexdigest()[:16] for a in arrays]


@dtypes
@same_bits
def test_threads_do_not_change_a_bit(kernels, shape, axes, dtype):
    case = Case(shape, axes, dtype)
    first = digest(case.everything(kernels, num_threads=1))
    for threads in (*range(2, 9), 0, 2):
        assert digest(case.everything(kernels, num_threads=threads)) == first


@dtypes
@same_bits
def test_instruction_set_does_not_change_a_bit(kernels, shape, axes, dtype):
    """With random inputs: no kernel contracts, and all have the same lanes."""
    case = Case(shape, axes, dtype)
    assert digest(case.everything(kernels)) == digest(case.everything(native))


@dtypes
@same_bits
def test_exact_inputs(kernels, shape, axes, dtype):
    """Small integers: every sum is exact in any order, so it must be equal to the reference, not close."""
    case = Case(shape, axes, dtype)
    rng = np.random.default_rng(0)
    case.x, case.dy = (rng.integers(-4, 5, shape).astype(dtype) for _ in range(2))
    case.mean, case.inv_std = np.full_like(case.mean, 2), np.full_like(case.inv_std, 0.25)
    for actual, expected in zip(case.grad(kernels, 1)[1:], case.grad(reference, 1)[1:], strict=True):
        np.testing.assert_array_equal(actual, expected.astype(dtype))


# NaN and infinity stay in their channel.


@dtypes
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize(
    ("shape", "axes", "poisoned", "channel"),
    [
        ((3, 20, 21), (0, 2), (1, 5, 20), 5),
        ((3, 20, 300), (0, 2), (2, 19, 0), 19),
        ((40, 21), (0,), (39, 20), 20),
        ((400, 3), (0,), (399, 1), 1),
    ],
    ids=str,
)
def test_poison_stays_in_its_channel(kernels, shape, axes, poisoned, channel, value, dtype):
    case = Case(shape, axes, dtype)
    clean = case.everything(kernels)
    for array, index in ((case.dy, poisoned), (case.x, poisoned), (case.mean, channel), (case.inv_std, channel)):
        saved = array[index]
        array[index] = value
        for before, after in zip(clean, case.everything(kernels), strict=True):
            others = np.arange(case.scale.size) != channel
            if before.shape == shape:
                before, after = (np.moveaxis(a, 1, 0) for a in (before, after))  # noqa: PLW2901
            np.testing.assert_array_equal(before[others], after[others])
        for training in (0, 1):
            with np.errstate(all="ignore"):
                expected = case.grad(reference, training)
            for one, other in zip(case.grad(kernels, training), expected, strict=True):
                np.testing.assert_array_equal(np.isfinite(one), np.isfinite(other))
        array[index] = saved


@dtypes
def test_frozen_gradient_ignores_the_sums(kernels, dtype):
    """One NaN in dY spoils the sums of its channel, and one element of dX."""
    case = Case((3, 4, 21), (0, 2), dtype)
    clean, _, _ = case.grad(kernels, 0)
    case.dy[1, 2, 20] = np.nan
    case.x[0, 1, 20] = np.nan
    dx, dscale, dbias = case.grad(kernels, 0)
    np.testing.assert_array_equal(np.argwhere(np.isnan(dx)), [[1, 2, 20]])
    case.dy[1, 2, 20] = dx[1, 2, 20] = clean[1, 2, 20]
    np.testing.assert_array_equal(dx, clean)
    np.testing.assert_array_equal(np.isnan(dscale), [False, True, True, False])
    np.testing.assert_array_equal(np.isnan(dbias), [False, False, True, False])


@dtypes
@pytest.mark.parametrize(("shape", "axes"), [((1, 2, 5), (0, 2)), ((5, 2), (0,)), ((5, 21), (0,))], ids=str)
def test_infinite_mean_at_a_tail(kernels, shape, axes, dtype):
    """The lanes past the end would make NaN of it."""
    case = Case(shape, axes, dtype)
    case.mean[...] = np.inf
    case.dy = np.abs(case.dy) + 1
    _, dscale, _ = case.grad(kernels, 0)
    np.testing.assert_array_equal(dscale, np.full_like(dscale, -np.inf))


# Nothing to reduce, nothing to keep.


@dtypes
@pytest.mark.parametrize(("shape", "axes"), [((0, 3), (0,)), ((2, 3, 0), (0, 2)), ((0, 3, 0), (0, 2))], ids=str)
def test_empty_reduction(kernels, shape, axes, dtype):
    case = Case(shape, axes, dtype)
    for training in (0, 1):
        dx, dscale, dbias = case.grad(kernels, training)
        assert dx.shape == shape
        np.testing.assert_array_equal([dscale, dbias], np.zeros((2, 3)))
    y, *statistics = case.training(kernels)
    assert y.shape == shape
    np.testing.assert_array_equal(statistics, np.full((4, 3), np.nan))
    np.testing.assert_array_equal(case.statistics(kernels), np.full((2, 3), np.nan))


@dtypes
@pytest.mark.parametrize(
    ("shape", "axes"), [((3, 0), (0,)), ((2, 0, 3), (0, 2)), ((0, 0), (0,)), ((0,), ())], ids=str
)
def test_no_channels(kernels, shape, axes, dtype):
    Case(shape, axes, dtype).check(kernels)
