"""Arrays of more elements than 32 bits count: what lies beyond is read, and written, where it is.

Inputs are pages of zeros, which the system has once for all of them, but for a few that numbers are written to.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import sys

import numpy as np
import pytest

from bngrad.runtime.native_library import Layout, call

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="how memory is had without taking it is Linux's"),
    pytest.mark.skipif(sys.maxsize < 1 << 32, reason="there are no such addresses"),
]

FLOAT, FLOAT16 = 1, 10
MORE = 1 << 32
"""No index of 32 bits goes so far, with a sign or without."""

SHAPES = {
    "rows": ((3, 4, MORE // 12 + 1001), (0, 2)),
    "short rows": ((MORE // 3136 + 5000, 64, 49), (0, 2)),
    "columns": ((MORE // 64 + 5000, 64), (0,)),
}


def memory(elements):
    """A float16 array of zeros that takes no memory until it is written to."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    try:
        pages = mmap.mmap(-1, 2 * elements, flags=flags)
    except OSError as error:
        pytest.skip(f"no address space for {2 * elements} bytes: {error}")
    pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.float16)


def places(shape):
    """Offsets on both sides of what 31 and 32 bits count, and at the end."""
    last = math.prod(shape) - 1
    return [i for i in (1 << 20, (1 << 31) - 1, 1 << 31, (1 << 31) + 777, MORE - 1, MORE) if i < last] + [last]


def channels(shape, axes, offsets):
    index = np.unravel_index(offsets, shape)
    kept = [i for i in range(len(shape)) if i not in axes]
    return np.ravel_multi_index([index[i] for i in kept], [shape[i] for i in kept])


def run(function, shape, axes, arrays, *attributes):
    pointer = ctypes.POINTER(ctypes.c_int64)
    dims, reduced = np.array(shape, np.int64), np.array(axes, np.int64)
    layout = Layout(
        dims.ctypes.data_as(pointer), reduced.ctypes.data_as(pointer), len(shape), len(axes), FLOAT16, FLOAT, FLOAT
    )
    pointers = [None if array is None else ctypes.c_void_p(array.ctypes.data) for array in arrays]
    call(function, ctypes.byref(layout), *attributes, *pointers, 2)


def parameters(shape, axes, *values):
    count = math.prod(extent for i, extent in enumerate(shape) if i not in axes)
    return [np.full(count, value, np.float32) for value in values]


@pytest.mark.parametrize("family", SHAPES)
def test_sums(family):
    shape, axes = SHAPES[family]
    dY, X = memory(math.prod(shape)), memory(math.prod(shape))
    at = places(shape)
    dY[at] = 2.0 ** np.arange(len(at))
    X[at] = 3.5
    scale, mean, inv_std, dscale, dbias = parameters(shape, axes, 1, 0.5, 2, -1, -1)
    run("bngrad_batch_normalization_grad", shape, axes, [dY, X, scale, mean, inv_std, None, dscale, dbias], 1)
    expected = np.zeros_like(dbias)
    np.add.at(expected, channels(shape, axes, at), dY[at].astype(np.float32))
    assert np.count_nonzero(expected) > 1
    np.testing.assert_array_equal(dbias, expected)
    np.testing.assert_array_equal(dscale, expected * (3.5 - 0.5) * 2)


@pytest.mark.parametrize("family", SHAPES)
def test_statistics(family):
    shape, axes = SHAPES[family]
    X = memory(math.prod(shape))
    at = places(shape)
    X[at] = 2.0 ** np.arange(len(at))
    mean, inv_std = parameters(shape, axes, -1, -1)
    epsilon = 1e-12
    run("bngrad_batch_normalization_statistics", shape, axes, [X, mean, inv_std], ctypes.c_double(epsilon))
    M = math.prod(shape) // mean.size
    sums = np.zeros((2, mean.size))
    np.add.at(sums[0], channels(shape, axes, at), X[at].astype(np.float64))
    np.add.at(sums[1], channels(shape, axes, at), X[at].astype(np.float64) ** 2)
    np.testing.assert_array_equal(mean, (sums[0] / M).astype(np.float32))
    variance = sums[1] / M - (sums[0] / M) ** 2
    np.testing.assert_allclose(inv_std, 1 / np.sqrt(variance + epsilon), rtol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("family", SHAPES)
def test_gradient(family):
    """The output takes 4.3 GB: its numbers are counted by 31 bits no more."""
    shape, axes = SHAPES[family]
    shape = (shape[0], shape[1], shape[2] // 2 + 1) if family == "rows" else (shape[0] // 2 + 1, *shape[1:])
    elements = math.prod(shape)
    assert 1 << 31 < elements < MORE
    dY, X, dX = memory(elements), memory(elements), memory(elements)
    # In pairs that cancel, each in one channel: all sums are zero, and dX is a multiple of dY.
    at = np.array(places(shape))
    others = at - 5 * (1 if family == "rows" else math.prod(shape[1:]))
    np.testing.assert_array_equal(channels(shape, axes, at), channels(shape, axes, others))
    written = np.sort([*at, *others])
    dY[at], dY[others] = np.arange(1, len(at) + 1), -np.arange(1, len(at) + 1)
    assert np.count_nonzero(dY[written]) == 2 * len(at)
    scale, mean, inv_std, dscale, dbias = parameters(shape, axes, 3, 0.5, 2, -1, -1)
    dX.view(np.uint16)[:] = 0xFFFF
    run("bngrad_batch_normalization_grad", shape, axes, [dY, X, scale, mean, inv_std, dX, dscale, dbias], 1)
    assert not dscale.any()
    assert not dbias.any()
    np.testing.assert_array_equal(np.flatnonzero(dX), written)
    np.testing.assert_array_equal(dX[written], 6 * dY[written])
