"""The ops on every instruction set against the float64 reference, and against each other bit for bit.

Bounds are on the error over the largest reference value, by the type of the output: 1e-6 for float, 1e-14 for
double, half a unit in the last place for the 16-bit types. For double the reference rounds as much as the kernels
do, or more (NumPy adds up columns one after the other). So its inputs are such that every sum is exact in any
order: on a coarse grid, and X symmetric about a mean on that grid.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import platform
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from bngrad.opset import reference
from bngrad.runtime import native, native_library
from isa_process import Kernels, digests
from pairwise import pairwise

FLOAT, DOUBLE, FLOAT16 = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
BOUNDS = {FLOAT: 1e-6, DOUBLE: 1e-14, FLOAT16: 5e-4, BFLOAT16: 4e-3}
EPSILON, MOMENTUM = 1e-3, 0.9

TYPES = {
    "float": (FLOAT, FLOAT, FLOAT),
    "double": (DOUBLE, DOUBLE, DOUBLE),
    "float16": (FLOAT16, FLOAT, FLOAT),
    "bfloat16": (BFLOAT16, FLOAT, FLOAT),
}
"""T, T1 and T2 as models usually have them."""

ALL_TYPES = [(t, t1, t2) for t in BOUNDS for t1, t2 in itertools.product(BOUNDS, BOUNDS) if {t1, t2} <= {t, FLOAT}]


OPS_BY_MODE = {flag: tuple((op, flag) for op in ("grad", "relu_grad", "grad_grad", "training")) for flag in (0, 1)}
EVERY_OP = (*OPS_BY_MODE[0], *OPS_BY_MODE[1], ("statistics",))


class Case:
    """Inputs of all ops for one shape."""

    def __init__(self, shape, axes, types=TYPES["float"], *, mean=1.0, seed=0):
        self.axes = axes
        self.types = types
        data, scale, statistic = types
        rng = np.random.default_rng([seed, *shape])
        positive = [axis % len(shape) for axis in axes]
        others = [i for i in range(len(shape)) if i not in positive]
        kept = [shape[i] for i in others]

        def draw(center, symmetric=False):
            reduced = [extent for i, extent in enumerate(shape) if i in positive]
            drawn = rng.normal(0, 1, (math.prod(kept), math.prod(reduced)))
            if data == DOUBLE:
                drawn = np.round(drawn * 8) / 8
                if symmetric:
                    half = drawn.shape[1] // 2
                    drawn[:, half:] = 0
                    drawn[:, half : 2 * half] = -drawn[:, :half]
                    drawn = rng.permuted(drawn, axis=1) if drawn.size < 10**6 else drawn
            drawn = np.moveaxis(drawn.reshape(kept + reduced), range(len(kept)), others)
            return np.ascontiguousarray((drawn + center).astype(data)).reshape(shape)

        def uniform(dtype):
            drawn = np.asarray(rng.uniform(0.5, 1.5, kept))
            return (np.round(drawn * 64) / 64 if data == DOUBLE else drawn).astype(dtype)

        self.x, self.dy, self.ddx = draw(mean, symmetric=True), draw(0.25), draw(-0.5)
        self.z = np.maximum(draw(0.25), 0).astype(data)
        self.scale, self.bias, self.ddscale, self.ddbias = (uniform(scale) for _ in range(4))
        self.inv_std, self.running_mean, self.running_var = (uniform(statistic) for _ in range(3))
        self.mean = (uniform(np.float64) - 1 + mean).astype(statistic)

    def call(self, implementation, op, arguments, options):
        if implementation is None:
            return f"batch_normalization_{op}", arguments, options
        function = getattr(implementation, op, None) or getattr(implementation, f"batch_normalization_{op}")
        return function(*arguments, **options)

    def grad(self, implementation, training, **options):
        arguments = (self.dy, self.x, self.scale, self.mean, self.inv_std, self.axes, training)
        return self.call(implementation, "grad", arguments, options)

    def relu_grad(self, implementation, training, **options):
        arguments = (self.dy, self.z, self.x, self.scale, self.mean, self.inv_std, self.axes, training)
        return self.call(implementation, "relu_grad", arguments, options)

    def grad_grad(self, implementation, training, **options):
        second = (self.ddx, self.ddscale, self.ddbias)
        arguments = (*second, self.dy, self.x, self.scale, self.mean, self.inv_std, self.axes, training)
        return self.call(implementation, "grad_grad", arguments, options)

    def training(self, implementation, unbiased=1, **options):
        arguments = (self.x, self.scale, self.bias, self.running_mean, self.running_var, self.axes)
        return self.call(implementation, "training", (*arguments, EPSILON, MOMENTUM, unbiased), options)

    def statistics(self, implementation, **options):
        return self.call(implementation, "statistics", (self.x, self.axes, EPSILON), options)

    def calls(self, ops=None, **options):
        """The calls of ops with their modes, by default of `EVERY_OP`."""
        return [getattr(self, op)(None, *flag, **options) for op, *flag in ops or EVERY_OP]

    def outputs(self, implementation, ops=None, **options):
        """The outputs of each call; calls of kernels are sent together."""
        calls = self.calls(ops, **options)
        if isinstance(implementation, Kernels):
            return implementation.calls(calls)
        return [getattr(implementation, name)(*arguments, **more) for name, arguments, more in calls]

    def digests(self, kernels, num_threads):
        """The digests of all outputs."""
        return kernels.digests(self.calls(num_threads=num_threads))

    def check(self, kernels, ops=EVERY_OP, expected=None):
        """Compares every output with the reference."""
        pairs = zip(self.outputs(kernels, ops), expected or self.outputs(reference, ops), strict=True)
        for (op, *_), (actual, want) in zip(ops, pairs, strict=True):
            size_of_sums = 0.0 if op == "statistics" else self.size_of_sums()
            assert_close(actual, want, self.dtypes(getattr(self, op)), size_of_sums)

    def size_of_sums(self):
        """Of M terms of about 1 and of either sign; one that happens to cancel has the error of this size."""
        return math.sqrt(self.x.size / max(self.scale.size, 1))

    def dtypes(self, op):
        """Of the op's outputs."""
        data, scale, statistic = self.types
        return {
            "grad": (data, scale, scale),
            "relu_grad": (data, scale, scale),
            "grad_grad": (data, data, scale),
            "training": (data, *(statistic,) * 4),
            "statistics": (DOUBLE if data == DOUBLE else FLOAT,) * 2,
        }[op.__name__]

    def everything(self, implementation, **options):
        return [output for outputs in self.outputs(implementation, **options) for output in outputs]


class CheckedCases:
    """Cases with their references: every instruction set is tested with the same, one after the other."""

    MAX_BYTES = 2**29

    def __init__(self):
        self._cases = {}

    def get(self, *key):
        if key not in self._cases:
            *arguments, ops = key
            case = Case(*arguments)
            expected = case.outputs(reference, ops)
            size = sum(output.nbytes for outputs in expected for output in outputs)
            self._cases[key] = case, expected, size
            while len(self._cases) > 1 and sum(size for *_, size in self._cases.values()) > self.MAX_BYTES:
                del self._cases[next(iter(self._cases))]
        return self._cases[key][:2]


_CHECKED_CASES = CheckedCases()


def check(kernels, shape, axes, types=TYPES["float"], ops=EVERY_OP):
    """Compares every output of ops, by default of all in every mode, with the reference."""
    case, expected = _CHECKED_CASES.get(tuple(shape), tuple(axes), types, ops)
    case.check(kernels, ops, expected)


def assert_close(actual, expected, dtypes, size_of_sums=0.0):
    for output, exact, dtype in zip(actual, expected, dtypes, strict=True):
        assert output.dtype == dtype
        assert output.shape == exact.shape
        if output.size == 0:
            continue
        errors = np.abs(output.astype(np.float64) - exact)
        error, size = errors.max(), np.abs(exact).max()
        if np.isnan(error):
            np.testing.assert_array_equal(np.isnan(output), np.isnan(exact))
            error, size = (np.nanmax(values, initial=0.0) for values in (errors, np.abs(exact)))
        is_sum = dtypes[0] != FLOAT and output.shape != actual[0].shape
        assert error <= BOUNDS[dtype] * max(size, size_of_sums if is_sum else 0.0)


def newest_isa(test):
    """Marks a test ``long`` for older instruction sets, whose bits `kernels_test.cc` compares with scalar's."""
    test.is_for_newest_isa = True
    return test


types = pytest.mark.parametrize("types", TYPES.values(), ids=TYPES)

# Where all four take long: float and float16 have kernels of their own for the ends of rows, so do the others, but
# those are compared with scalar for every length by kernels_test.cc.
two_types, one_type = (
    pytest.mark.parametrize(
        "types",
        [pytest.param(t, marks=[] if name in short else pytest.mark.long) for name, t in TYPES.items()],
        ids=TYPES,
    )
    for short in (("float", "float16"), ("float",))
)
"""The second for partitions, in which types differ least."""


def test_library_knows_this_machine():
    """A supported instruction set that is not found would only be skipped below."""
    isas = native_library.isas()
    assert list(isas)[-1] == "scalar"
    assert isas["scalar"]
    if sys.platform == "linux":
        flags = set(Path("/proc/cpuinfo").read_text().split())
        needed = {
            "avx2": {"avx2", "fma", "f16c"},
            "avx512": {"avx512f"},
        }
        for isa, its_flags in needed.items():
            assert isas.get(isa, False) == (its_flags <= flags)
    assert ("neon" in isas) == (platform.machine() in ("aarch64", "arm64") and sys.platform != "win32")
    if native_library.ISA_VARIABLE not in os.environ:
        assert native_library.active_isa() == next(isa for isa, supported in isas.items() if supported)


@types
@pytest.mark.parametrize("rank", [*range(1, 6), *(pytest.param(r, marks=pytest.mark.long) for r in (6, 7, 8))])
def test_every_choice_of_axes(kernels, rank, types):
    shape = (3, 2, 4, 2, 3, 2, 2, 2)[:rank]
    for count in range(rank + 1):
        for axes in itertools.combinations(range(rank), count):
            check(kernels, shape, axes, types)


@types
@pytest.mark.parametrize("shape", [(3, 1, 5, 1, 2), (1, 4, 1, 3), (1, 1, 1), (1,)], ids=str)
def test_dimensions_of_extent_1(kernels, shape, types):
    for count in range(len(shape) + 1):
        for axes in itertools.combinations(range(len(shape)), count):
            check(kernels, shape, axes, types)


# Edges: of a vector (16), of rows that are summed together (2, 4, 8), of a short row (128, or 512 in training
# mode), of short rows that are summed as columns (16 of them, 1024 elements of each at a time), of the terms
# that are summed before they become double (512 elements of a row), of a tile of channels (64, from 2048 on), of
# narrow columns (64) and a tile of them (1024), of a segment (16384 elements of a row, 16 to 1024 rows of which
# there are 4 or a multiple of 4), of rows that are folded (64 times 64, 16 or fewer), of what is asked for ahead
# (256 columns); primes; real spatial sizes.
LENGTHS = (*range(1, 34), 47, 48, 49, 63, 64, 65, 97, 127, 128, 129, 196, 511, 512, 513, 529, 1023, 1024, 1025)
ROWS = (1, 9, 17, 256)
MORE_ROWS = (2, 7, 8, 15, 16, 255, 257)


@two_types
def test_row_lengths(kernels, types):
    for length in (*LENGTHS, 16383, 16384, 16385, 32771):
        check(kernels, (3, 2, length), (0, 2), types)


@two_types
@pytest.mark.parametrize("rows", [1, 2, 4, 7])
def test_a_few_short_rows(kernels, rows, types):
    """Strips of 16 elements have parts of one channel, of two or of many, and the last one may not be whole."""
    for channels, length in ((70, 1), (33, 7), (5, 15), (4, 16), (65, 17), (7, 24), (16, 49), (9, 127), (5, 300)):
        check(kernels, (rows, channels, length), (0, 2), types)


@newest_isa
@two_types
@pytest.mark.parametrize("rows", [16, 17, 35])
def test_many_short_rows(kernels, rows, types):
    """They are columns of a thousand at a time: 40 by 40 are one tile of more."""
    for channels, length in (
        (40, 40),
        (70, 49),
        (66, 48),
        (3, 7),
        (33, 16),
        (64, 1),
        (65, 33),
        (9, 127),
        (40, 128),
        (8, 129),
        (130, 15),
    ):
        check(kernels, (rows, channels, length), (0, 2), types)


@two_types
def test_channel_counts(kernels, types):
    for channels in (*LENGTHS[:40], 255, 256, 257, 271, 2047, 2048, 2111):
        check(kernels, (2, channels, 9), (0, 2), types)


@newest_isa
@two_types
@pytest.mark.parametrize("rows", [*ROWS, *(pytest.param(r, marks=pytest.mark.long) for r in MORE_ROWS)])
def test_column_counts(kernels, rows, types):
    for columns in LENGTHS:
        check(kernels, (rows, columns), (0,), types)


@newest_isa
@two_types
def test_long_columns(kernels, types):
    for rows, columns in ((1023, 3), (1024, 64), (1025, 65), (2049, 31), (21505, 3), (70001, 1), (5000, 130)):
        check(kernels, (rows, columns), (0,), types)


@newest_isa
@two_types
def test_rows_that_fold_to_whole_vectors(kernels, types):
    """So many times 64, or one less: three channels by 64 or by 21, 100 by 4 or by 1, 65 never."""
    for rows, columns in ((4096, 3), (4095, 3), (256, 100), (255, 100), (1024, 33), (1023, 33), (1100, 65)):
        check(kernels, (rows, columns), (0,), types)
    check(kernels, (2, 260, 3, 100), (0, 1, 2), types)
    check(kernels, (2, 3, 261, 100), (0, 2), types)


@newest_isa
@one_type
def test_segments_of_columns(kernels, types):
    """From more than 32768 elements on there are 4 segments if each has 16 rows, from more than 512 rows on 8."""
    for rows in (47, 48, 49, 63, 64, 65, 511, 512, 513, 1025):
        check(kernels, (rows, 700), (0,), types)


WIDE = {
    "two tiles": (1027, 2064),
    "a part of a vector": (1027, 1032),  # whole cache lines of double
    "one tile": (2050, 2048),
    "a tile and a rest": (1025, 4112),
}
SHORT_WIDE = {("two tiles", "float16"), ("a part of a vector", "float")}


@newest_isa
@pytest.mark.parametrize(
    ("case", "types"),
    [
        pytest.param(case, types, id=f"{case}-{name}", marks=[pytest.mark.long] * ((case, name) not in SHORT_WIDE))
        for case in WIDE
        for name, types in TYPES.items()
    ],
)
def test_wide_rows(kernels, case, types):
    """Past the caches, rows of more than 1024 columns are mapped four together, and from 4 million elements on
    tiles have up to 4096 columns."""
    check(kernels, WIDE[case], (0,), types)


@newest_isa
@one_type
def test_outer_dimensions(kernels, types):
    """Patterns that take several blocks a segment, in both families, with remainders everywhere."""
    for shape, axes in (
        ((5, 3, 7, 4, 19), (0, 2, 4)),
        ((5, 3, 7, 6, 19), (0, 2, 4)),
        ((5, 3, 7, 4, 19), (1, 3)),
        ((3, 70, 5, 1100), (1,)),
        ((3, 70, 5, 1100), (0, 2)),
        ((301, 3, 11, 5), (0, 2)),
        ((41, 2, 401, 3), (0, 2)),
        ((9, 2, 3, 16400), (0, 3)),
        ((2, 40, 3, 50), (0, 2, 3)),
    ):
        check(kernels, shape, axes, types)


LARGE = [
    ((50, 70, 700), (0, 2)),
    ((33, 1312, 49), (0, 2)),
    ((33, 326, 197), (0, 2)),
    ((129, 250, 70), (0, 2)),  # tiles of whole lines are more than the cache was to hold
    ((33000, 64), (0,)),
    ((14000, 3, 51), (0, 2)),  # fewer channels than make a whole line
    ((3, 4, 51, 3500), (1, 3)),
    ((257, 16500), (0,)),
    ((3, 7, 150001), (0, 2)),
    ((33000, 65), (0,)),
]
SHORT_LARGE = ((0, 0), (3, 1), (4, 0), (5, 1))
"""Rows and columns, in each mode: those of `make test`."""


@newest_isa
@pytest.mark.parametrize(
    ("shape", "axes", "flag"),
    [
        pytest.param(*case, flag, marks=[pytest.mark.long] * ((place, flag) not in SHORT_LARGE))
        for place, case in enumerate(LARGE)
        for flag in (0, 1)
    ],
    ids=str,
)
def test_outputs_too_large_for_the_cache(kernels, shape, axes, flag):
    """8 MiB and more: stores go past the cache, where a row has whole cache lines."""
    check(kernels, shape, axes, ops=OPS_BY_MODE[flag])


@newest_isa
@pytest.mark.parametrize(("shape", "axes"), [((33, 1312, 49), (0, 2)), ((33000, 64), (0,))], ids=str)
def test_large_outputs_that_begin_anywhere(kernels, shape, axes, monkeypatch):
    """As NumPy's arrays do: rows are as long as whole cache lines, and are none."""
    monkeypatch.setattr(kernels, "outputs_later", 16)
    check(kernels, shape, axes)


@pytest.mark.parametrize("outputs_later", [0, 64, 320, 1024])
@pytest.mark.parametrize("shape", [(11, 64, 256), (7, 256, 196), (10, 512, 49)], ids=str)
def test_rows_with_one_place_in_their_pages(kernels, shape, outputs_later, monkeypatch):
    """Or every other one, where dX begins at the place of X in its page, or a little later."""
    monkeypatch.setattr(kernels, "outputs_later", outputs_later)
    case = Case(shape, (0, 2))
    for flag in (0, 1):
        assert_close(case.grad(kernels, flag), case.grad(reference, flag), case.dtypes(case.grad))


@newest_isa
@pytest.mark.parametrize("flag", [0, 1], ids=["frozen", "training"])
@pytest.mark.parametrize(("shape", "axes"), [((33, 656, 196), (0, 2)), ((1030, 4128), (0,))], ids=str)
def test_16_bits_past_the_caches(kernels, shape, axes, flag):
    """Two strips make a cache line: of rows side by side each writes both, one after the other."""
    case = Case(shape, axes, TYPES["float16"])
    assert_close(case.grad(kernels, flag), case.grad(reference, flag), case.dtypes(case.grad), case.size_of_sums())


@newest_isa
@pytest.mark.parametrize("spatial", [49, 196, 784, 3136])
def test_resnet_shapes(kernels, spatial):
    check(kernels, (8, 32, spatial), (0, 2))
    check(kernels, (8, spatial, 32), (0, 1))


@pytest.mark.parametrize("far", [1000.0, 2.0**20])
@pytest.mark.parametrize(("shape", "axes"), [((32, 4, 3136), (0, 2)), ((32, 1000, 4), (0, 1))], ids=str)
def test_far_from_zero(kernels, shape, axes, far):
    """A mean a thousand deviations from zero, and one where X has three bits left behind the point."""
    case = Case(shape, axes, mean=far)
    mean, inv_std = case.statistics(native)
    case.mean, case.inv_std = mean, inv_std
    case.check(kernels)


@types
@pytest.mark.parametrize(("shape", "axes"), [((16, 4, 100), (0, 2)), ((1600, 4), (0,))], ids=str)
def test_gradients_about_1000_in_grad_grad(kernels, shape, axes, types):
    """The sum of ddX*dY is a million times what is left of it when their means are taken out.

    In double that costs six digits, the reference as well as the kernels.
    """
    case = Case(shape, axes, types)
    case.dy, case.ddx = ((a.astype(np.float64) + 1000).astype(types[0]) for a in (case.dy, case.ddx))
    case.mean, case.inv_std = case.statistics(native)
    got, want = case.grad_grad(kernels, 1), case.grad_grad(reference, 1)
    bounds = {FLOAT: 1e-5, DOUBLE: 1e-8, FLOAT16: 5e-4, BFLOAT16: 4e-3}
    for output, exact in zip(got, want, strict=True):
        assert np.abs(output.astype(np.float64) - exact).max() <= bounds[output.dtype] * np.abs(exact).max()


@pytest.mark.parametrize(("shape", "axes"), [((16, 4, 100), (0, 2)), ((1600, 4), (0,))], ids=str)
def test_gradient_about_1000(kernels, shape, axes):
    """Batch statistics take the mean of dY away: dX must be as exact as what is left is small."""
    case = Case(shape, axes)
    case.dy += np.float32(1000)
    case.mean, case.inv_std = case.statistics(native)
    assert_close(case.grad(kernels, 1), case.grad(reference, 1), case.dtypes(case.grad))


@newest_isa
def test_ten_million_to_one(kernels):
    case = Case((10**7,), (0,))
    assert_close(case.grad(kernels, 1), case.grad(reference, 1), case.dtypes(case.grad))
    assert_close(case.training(kernels), case.training(reference), case.dtypes(case.training))


@pytest.mark.long
@types
@pytest.mark.parametrize(("shape", "axes"), [((10**7, 2), (0,)), ((10, 2, 1000, 1000), (0, 2, 3))], ids=str)
def test_ten_million_to_one_of_two(kernels, shape, axes, types):
    check(kernels, shape, axes, types)


# The same bits.

SAME_BITS = [
    ((2, 3, 5), (0, 2)),
    ((8, 64, 20, 20), (0, 2, 3)),  # rows, a tile at a time
    ((8, 3, 100, 100), (0, 2, 3)),  # rows, in phases
    ((5, 17, 49), (0, 2)),
    ((13, 70, 7, 7), (0, 2, 3)),  # rows so short that several are summed together
    ((18, 70, 7, 7), (0, 2, 3)),  # short rows, as columns
    ((4, 24, 24, 48), (0, 1, 2)),  # columns, in phases
    ((60000, 3), (0,)),  # columns, folded
    ((4096, 12), (0,)),  # columns, folded to whole vectors
    ((16, 3000), (0,)),  # columns, in several tiles
    ((7, 5, 40, 9, 11), (0, 2, 4)),
]
same_bits = pytest.mark.parametrize(("shape", "axes"), SAME_BITS, ids=str)


@functools.lru_cache(maxsize=4)
def native_digests(shape, axes, types):
    """A case, and the digests of its outputs with one thread and the instruction set of this process."""
    case = Case(shape, axes, types)
    return case, digests(case.everything(native, num_threads=1))


@two_types
@same_bits
def test_instruction_set_does_not_change_a_bit(kernels, shape, axes, types):
    """Nor do threads. With random inputs: no kernel contracts, and all have the same lanes.

    The partition does not depend on the instruction set, so only one runs with every number of threads.
    """
    case, expected = native_digests(shape, axes, types)
    for threads in (1, 2, 3, 64, 0) if kernels.isa == native_library.active_isa() else (1, 3):
        assert case.digests(kernels, threads) == expected, f"{threads} threads"


@newest_isa
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((4, 139, 3901), (0, 2)), ((3, 4, 51, 3500), (1, 3)), ((130, 32300), (0,))],
    ids=["one outer", "three outer", "columns"],
)
def test_several_tiles_in_a_task(kernels, shape, axes):
    """Tasks of several tiles, past the caches: no result depends on how many tiles a task has."""
    case, expected = native_digests(shape, axes, TYPES["float"])
    assert case.digests(kernels, 3) == expected


_EXACT_OPS = {("grad", 1): 1, ("relu_grad", 1): 1, ("grad_grad", 0): 2}
"""The ops whose outputs from a place on are sums."""


@functools.lru_cache(maxsize=1)
def exact_case(shape, axes, types):
    """A case of small integers, and the reference's outputs of `_EXACT_OPS`."""
    case = Case(shape, axes, types)
    rng = np.random.default_rng(0)
    case.x, case.dy, case.z, case.ddx = (rng.integers(-4, 5, shape).astype(types[0]) for _ in range(4))
    case.mean, case.inv_std = np.full_like(case.mean, 2), np.full_like(case.inv_std, 0.25)
    return case, case.outputs(reference, _EXACT_OPS)


@types
@same_bits
def test_exact_inputs(kernels, shape, axes, types):
    """Every sum is exact in any order, so it must be equal to the reference, not close."""
    case, expected = exact_case(shape, axes, types)
    for first, outputs, exact in zip(
        _EXACT_OPS.values(), case.outputs(kernels, _EXACT_OPS), expected, strict=True
    ):
        for actual, sums in zip(outputs[first:], exact[first:], strict=True):
            np.testing.assert_array_equal(actual, sums.astype(actual.dtype))


# The element types.


@pytest.mark.parametrize("types", ALL_TYPES, ids=lambda types: "-".join(d.name for d in types))
def test_every_combination_of_types(kernels, types):
    for shape, axes in (((5, 3, 37), (0, 2)), ((70, 19), (0,)), ((4, 3), ()), ((1, 1), (0, 1))):
        check(kernels, shape, axes, types)


halves = pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=["float16", "bfloat16"])


@halves
@pytest.mark.parametrize("axis", [0, 1], ids=["columns", "rows"])
def test_every_16_bit_value_is_read_and_rounded_as_numpy_does(kernels, dtype, axis):
    """dX = gain * dY, for gains that leave ties, overflow, and results without a normal exponent."""
    values = np.arange(2**16, dtype=np.uint16).view(dtype)
    gains = [1, 1.5, 1 + 2**-11, 1 + 2**-8, 1 - 2**-12, 2**-10, 3 * 2**-26, 2**-120, 300, 1e30, 65519 / 65504]
    gains = np.array([*gains, -1], np.float32)
    dy = np.repeat(values[:, None] if axis == 0 else values[None], gains.size, axis=1 - axis)
    ones = np.ones_like(gains)
    dx, _, _ = kernels.grad(dy, dy, gains, ones, ones, [axis], 0)
    with np.errstate(all="ignore"):
        expected = (dy.astype(np.float32) * (gains if axis == 0 else gains[:, None])).astype(dtype)
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(dx), nan)
    np.testing.assert_array_equal(dx.view(np.uint16)[~nan], expected.view(np.uint16)[~nan])


@halves
@pytest.mark.parametrize("sign", [1, -1])
def test_parameters_are_rounded_once(kernels, dtype, sign):
    """1 + half a unit + a little: by way of a float the little is lost, and the tie goes down."""
    half_unit = 2.0**-11 if dtype == FLOAT16 else 2.0**-8
    dy = (sign * np.array([[1], [half_unit], [2.0**-24]])).astype(dtype)
    ones = np.ones(1, dtype)
    _, _, dbias = kernels.grad(dy, dy, ones, ones, ones, [0], 0)
    assert dbias.astype(np.float64) == [sign * (1 + 2 * half_unit)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1e-30, 0), (2.0**-25, 0), (2.0**-25 * 1.001, 2.0**-24), (65519.9, 65504), (65520, np.inf), (1e300, np.inf)],
)  # fmt: skip
def test_parameters_at_the_ends_of_float16(kernels, value, expected):
    """inv_std is 1 / sqrt(epsilon) where nothing varies."""
    x, ones = np.zeros((4, 1), FLOAT16), np.ones(1, FLOAT16)
    *_, inv_std = kernels.training(x, ones, ones, ones, ones, [0], value**-2.0 if value < 1e200 else 0.0, 0.5, 0)
    np.testing.assert_array_equal(inv_std, np.array([expected], FLOAT16))


@pytest.mark.parametrize("shape", [(1000, 3), (3, 1000)], ids=["columns", "rows"])
def test_sums_of_16_bits_do_not_overflow(kernels, shape):
    axis = shape.index(1000)
    big = np.full(shape, 65504, FLOAT16)
    ones, half = np.ones(3, FLOAT), np.ones(3, FLOAT16)
    dx, dscale, dbias = kernels.grad(big, big, ones, 0 * ones, ones, [axis], 0)
    np.testing.assert_array_equal(dx, big)
    np.testing.assert_array_equal(dbias, np.full(3, 65504 * 1000, FLOAT))
    np.testing.assert_allclose(dscale, np.full(3, 65504.0**2 * 1000, FLOAT), rtol=BOUNDS[FLOAT])
    _, dscale, dbias = kernels.relu_grad(big, big, big, half, 0 * half, half, [axis], 0)
    np.testing.assert_array_equal([dscale, dbias], np.full((2, 3), np.inf))
    np.testing.assert_array_equal(
        kernels.grad(big, big, 2 * ones, ones, ones, [axis], 0)[0], np.full(shape, np.inf)
    )
    dx, _, _ = kernels.grad(big, big, ones, 65504 * ones, ones, [axis], 1)
    np.testing.assert_array_equal(dx, np.zeros(shape))
    d_dy, d_x, d_scale = kernels.grad_grad(big, ones, ones, big, big, ones, 65504 * ones, ones, [axis], 1)
    np.testing.assert_array_equal(d_dy, np.ones(shape))
    np.testing.assert_array_equal(d_x, np.zeros(shape))
    np.testing.assert_array_equal(d_scale, np.zeros(3))
    mean, inv_std = kernels.statistics(big, [axis], 1.0)
    np.testing.assert_array_equal([mean, inv_std], [[65504] * 3, [1] * 3])


# NaN and infinity stay in their channel.


POISONED = [
    ((3, 20, 21), (0, 2), (1, 5, 20), 5),
    ((3, 20, 300), (0, 2), (2, 19, 0), 19),
    ((40, 21), (0,), (39, 20), 20),
    ((400, 3), (0,), (399, 1), 1),
]
"""Shapes and axes, and an element and its channel."""


class Poisoned:
    """A case with a value at one place after the other, and the finite elements of the reference's gradients."""

    GRADIENTS = tuple(op for op in EVERY_OP if op[0].endswith("grad"))

    def __init__(self, place, value, types):
        shape, axes, self.element, self.channel = place
        self.case, self.value = Case(shape, axes, types), value
        self.finite = [
            [np.isfinite(output) for outputs in self.case.outputs(reference, self.GRADIENTS) for output in outputs]
            for _ in self.places()
        ]

    def places(self):
        """Yields after each change of one value, which is taken back then."""
        case = self.case
        arrays = [(array, self.element) for array in (case.x, case.dy, case.z, case.ddx)]
        arrays += [(array, self.channel) for array in (case.mean, case.inv_std, case.ddscale, case.ddbias)]
        for array, index in arrays:
            saved = array[index]
            array[index] = self.value
            try:
                yield
            finally:
                array[index] = saved


poisoned_case = functools.lru_cache(maxsize=1)(Poisoned)


@pairwise(types=TYPES, value=[np.nan, np.inf, -np.inf], place=POISONED)
def test_poison_stays_in_its_channel(kernels, types, value, place):
    poisoned = poisoned_case(place, value, types)
    case = poisoned.case
    clean = case.everything(kernels)
    others = np.arange(case.scale.size) != poisoned.channel
    for finite, _ in zip(poisoned.finite, poisoned.places(), strict=True):
        outputs = case.outputs(kernels)
        for before, after in zip(clean, itertools.chain(*outputs), strict=True):
            if before.shape == case.x.shape:
                before, after = (np.moveaxis(a, 1, 0) for a in (before, after))  # noqa: PLW2901
            np.testing.assert_array_equal(before[others], after[others])
        gradients = (outputs[EVERY_OP.index(op)] for op in Poisoned.GRADIENTS)
        for output, is_finite in zip(itertools.chain(*gradients), finite, strict=True):
            np.testing.assert_array_equal(np.isfinite(output), is_finite)


@types
def test_frozen_gradient_ignores_the_sums(kernels, types):
    """One NaN in dY spoils the sums of its channel, and one element of dX."""
    case = Case((3, 4, 21), (0, 2), types)
    clean, _, _ = case.grad(kernels, 0)
    case.dy[1, 2, 20] = np.nan
    case.x[0, 1, 20] = np.nan
    dx, dscale, dbias = case.grad(kernels, 0)
    np.testing.assert_array_equal(np.argwhere(np.isnan(dx)), [[1, 2, 20]])
    case.dy[1, 2, 20] = dx[1, 2, 20] = clean[1, 2, 20]
    np.testing.assert_array_equal(dx, clean)
    np.testing.assert_array_equal(np.isnan(dscale), [False, True, True, False])
    np.testing.assert_array_equal(np.isnan(dbias), [False, False, True, False])


@types
def test_frozen_second_gradient_ignores_the_sums(kernels, types):
    case = Case((3, 4, 21), (0, 2), types)
    clean = case.grad_grad(kernels, 0)
    case.dy[1, 2, 20] = case.ddx[0, 1, 20] = np.nan
    d_dy, d_x, d_scale = case.grad_grad(kernels, 0)
    np.testing.assert_array_equal(np.argwhere(np.isnan(d_dy)), [[0, 1, 20]])
    np.testing.assert_array_equal(np.argwhere(np.isnan(d_x)), [[1, 2, 20]])
    np.testing.assert_array_equal(np.isnan(d_scale), [False, True, True, False])
    for output, before in zip((d_dy, d_x), clean, strict=False):
        np.testing.assert_array_equal(output[~np.isnan(output)], before[~np.isnan(output)])


@types
def test_a_relu_that_was_shut_hides_what_came_back(kernels, types):
    """Where Z is 0, below, or NaN, dZ counts as zero, whatever it is."""
    case = Case((3, 2, 21), (0, 2), types)
    case.z[0, 0, :3] = 0, np.nan, -1
    case.dy[0, 0, :3] = np.nan, np.inf, np.nan
    for training in (0, 1):
        got = case.relu_grad(kernels, training)
        assert all(np.isfinite(output).all() for output in got)
        assert_close(got, case.relu_grad(reference, training), case.dtypes(case.relu_grad))


@types
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((1, 2, 5), (0, 2)), ((16, 2, 5), (0, 2)), ((5, 2), (0,)), ((5, 21), (0,)), ((3, 2, 1029), (0, 2))],
    ids=str,
)
def test_infinite_mean_at_a_tail(kernels, shape, axes, types):
    """The lanes past the end would make NaN of it."""
    case = Case(shape, axes, types)
    case.mean[...] = np.inf
    case.dy = np.abs(case.dy) + 1
    _, dscale, _ = case.grad(kernels, 0)
    np.testing.assert_array_equal(dscale, np.full_like(dscale, -np.inf))


# Nothing to reduce, nothing to keep.


@types
@pytest.mark.parametrize(("shape", "axes"), [((0, 3), (0,)), ((2, 3, 0), (0, 2)), ((0, 3, 0), (0, 2))], ids=str)
def test_empty_reduction(kernels, shape, axes, types):
    case = Case(shape, axes, types)
    for training in (0, 1):
        dx, dscale, dbias = case.grad(kernels, training)
        assert dx.shape == shape
        np.testing.assert_array_equal([dscale, dbias], np.zeros((2, 3)))
        np.testing.assert_array_equal(case.relu_grad(kernels, training)[1:], np.zeros((2, 3)))
        d_dy, d_x, d_scale = case.grad_grad(kernels, training)
        assert d_dy.shape == d_x.shape == shape
        np.testing.assert_array_equal(d_scale, np.zeros(3))
    y, *statistics = case.training(kernels)
    assert y.shape == shape
    np.testing.assert_array_equal(statistics, np.full((4, 3), np.nan))
    np.testing.assert_array_equal(case.statistics(kernels), np.full((2, 3), np.nan))


@types
@pytest.mark.parametrize(
    ("shape", "axes"), [((3, 0), (0,)), ((2, 0, 3), (0, 2)), ((0, 0), (0,)), ((0,), ())], ids=str
)
def test_no_channels(kernels, shape, axes, types):
    check(kernels, shape, axes, types)
