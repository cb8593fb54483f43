"""The gradient of a depthwise convolution by its weights.

A channel has few products: dW[m, k] = sum over n, o of dY[n, m, o] X[n, c, o stride + k dilation - begin]. In two
dimensions with known extents a matrix product makes more of them than wanted, but all at once; those that are not
wanted get the factor 0 (so an infinity makes NaN of the gradients of its channel):

- small images: G = sum over n of dY[n]^T X[n] holds every element of Y by every element of X;
- wider ones: for each row of the kernel, T = sum over n and rows of dY^T X holds every column of Y by every column
  of X, from the rows that this row of the kernel brings together;
- others: for each tap the elementwise product of dY and a part of X, and its sum.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from bngrad.graph.node_reader import dtype_of
from bngrad.passes.lower import sliding
from bngrad.passes.lower.shapes import reshape, spatial

if TYPE_CHECKING:
    import onnx_ir as ir
    from numpy.typing import NDArray

    from bngrad.passes.lower.convolution_operands import Parts
    from bngrad.passes.lower.site import Site
    from bngrad.passes.lower.windows import Axis

    _Mask: TypeAlias = NDArray[np.bool_]

_SMALL_IMAGE = 4096
"""Elements of one channel's G."""
_WIDE_IMAGE = 40
"""Columns for each column of the kernel: beyond it most of T is not wanted."""
_LARGE_MASK = 1 << 26
"""Elements of what is made before any run."""
_TO_THE_END = 2**62
"""For Slice."""


def weight_gradient(parts: Parts) -> ir.Value:
    """Returns dW [M, 1, *kernel], with M / group weights for a channel."""
    windows = parts.windows
    if windows.rank != 2 or not windows.fixed or windows.number is None or windows.size is None:
        return of_taps(parts)
    if windows.number * windows.size <= _SMALL_IMAGE:
        return of_images(parts)
    if any(_size(axis) > _LARGE_MASK for axis in windows.axes):
        return of_taps(parts)
    rows, columns = (_meeting(axis) for axis in windows.axes)
    # A row of the kernel that meets nothing but padding would leave nothing to multiply.
    if columns.shape[1] <= _WIDE_IMAGE * columns.shape[2] and rows.any(axis=(0, 1)).all():
        return of_rows(parts)
    return of_taps(parts)


def of_images(parts: Parts) -> ir.Value:
    """G, times which of its elements belong to which tap."""
    site, group = parts.site, parts.group
    rows, columns = (_meeting(axis) for axis in parts.windows.axes)
    left = reshape(site, parts.y, 0, group, parts.m // group * len(rows) * len(columns))
    right = reshape(site, parts.x, 0, group, rows.shape[1] * columns.shape[1])
    products = site.microsoft("FusedMatMul", left, right, transBatchA=1, transBatchB=1, transA=1)
    # [out, out, extent, extent, kernel, kernel] of rows and columns in turn
    wanted = np.einsum("oek,pfl->opefkl", rows, columns).reshape(-1, prod(parts.kernel))
    mask = site.constant(wanted, dtype_of(parts.y))
    dW = site.op("MatMul", reshape(site, products, parts.m, len(wanted)), mask)
    return reshape(site, dW, parts.m, 1, parts.kernel)


def of_rows(parts: Parts) -> ir.Value:
    """T for each row of the kernel, times which of its elements belong to which column."""
    site, group = parts.site, parts.group
    rows, columns = (_meeting(axis) for axis in parts.windows.axes)
    wanted = columns.reshape(-1, columns.shape[2])
    mask = site.constant(wanted, dtype_of(parts.y))
    y, x = (site.op("Transpose", value, perm=[1, 0, 2, 3]) for value in (parts.y, parts.x))
    results = []
    for tap in range(rows.shape[2]):
        met = np.argwhere(rows[:, :, tap])
        (first, begin), (last, end) = met[0], met[-1]
        left = _rows(site, y, first, last, 1, rows.shape[0])
        right = _rows(site, x, begin, end, parts.windows.stride[0], rows.shape[1])
        left = reshape(site, left, group, parts.m // group, -1, columns.shape[0])
        right = reshape(site, right, group, 1, -1, columns.shape[1])
        products = reshape(site, site.microsoft("FusedMatMul", left, right, transA=1), parts.m, 1, len(wanted))
        results.append(site.op("MatMul", products, mask))
    return reshape(site, site.op("Concat", *results, axis=1), parts.m, 1, parts.kernel)


def of_taps(parts: Parts) -> ir.Value:
    """For each tap the sum of dY times what it meets in X."""
    site, windows, rank = parts.site, parts.windows, parts.windows.rank
    x, y = sliding.span(site, windows, parts.x, parts.y), parts.y
    several = parts.m > parts.group
    if several:
        y = reshape(site, y, 0, parts.group, parts.m // parts.group, spatial(site, y, rank))
    axes, steps = site.int64(list(range(2, 2 + rank))), site.int64(windows.stride)
    summed = site.int64([0, *range(2 + several, 2 + several + rank)])
    sums = []
    for tap in product(*map(range, parts.kernel)):
        start = [k * d for k, d in zip(tap, windows.dilation, strict=True)]
        left = [(n - 1 - k) * d for n, k, d in zip(parts.kernel, tap, windows.dilation, strict=True)]
        end = [-number or _TO_THE_END for number in left]
        met = site.op("Slice", x, site.int64(start), site.int64(end), axes, steps)
        if several:
            met = site.op("Unsqueeze", met, site.int64([2]))
        total = site.op("ReduceSum", site.op("Mul", y, met), summed, keepdims=0)
        sums.append(reshape(site, total, parts.m, 1))
    return reshape(site, site.op("Concat", *sums, axis=1), parts.m, 1, parts.kernel)


def _meeting(axis: Axis) -> _Mask:
    """[out, extent, kernel]: whether a tap of a window meets an element."""
    assert axis.out is not None and axis.extent is not None  # noqa: PT018, S101 - they are known
    assert axis.kernel is not None and axis.begin is not None  # noqa: PT018, S101
    window, element, tap = np.ogrid[: axis.out, : axis.extent, : axis.kernel]
    met: _Mask = element == window * axis.stride + tap * axis.dilation - axis.begin
    return met


def _size(axis: Axis) -> int:
    """How many elements `_meeting` has."""
    return (axis.out or 0) * (axis.extent or 0) * (axis.kernel or 0)


def _rows(site: Site, value: ir.Value, first: int, last: int, step: int, height: int) -> ir.Value:
    """Every so many rows of [C, N, height, width], from the first to the last."""
    if (first, last, step) == (0, height - 1, 1):
        return value
    return site.op("Slice", value, *(site.int64([number]) for number in (first, last + 1, 2, step)))
