"""The gradient of a depthwise convolution by its weights, two-dimensional and with known extents.

A channel has few products: dW[m, k] = sum over n, o of dY[n, m, o] X[n, c, o stride + k dilation - begin]. A matrix
product makes more of them than wanted, but all at once, and those that are not wanted get the factor 0:

- small images: G = sum over n of dY[n]^T X[n] holds every element of Y by every element of X;
- others: for each row of the kernel, T = sum over n and rows of dY^T X, every column of Y by every column of X, from
  the rows that this row of the kernel brings together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from bngrad.passes.lower.shapes import reshape
from bngrad.passes.node_view import dtype_of

if TYPE_CHECKING:
    import onnx_ir as ir
    from numpy.typing import NDArray

    from bngrad.passes.lower.site import Site
    from bngrad.passes.lower.windows import Axis, Windows

    _Mask: TypeAlias = NDArray[np.bool_]

_SMALL = 4096
"""Elements of one channel's G."""


def weight_gradient(
    site: Site, windows: Windows, x: ir.Value, y: ir.Value, shape: tuple[int, ...], group: int
) -> ir.Value | None:
    """Returns dW [M, 1, *kernel], or None if these forms do not cover it."""
    if windows.rank != 2 or not windows.fixed or windows.number is None or windows.size is None:
        return None
    rows, columns = (_meeting(axis) for axis in windows.axes)
    if windows.number * windows.size <= _SMALL:
        return _of_images(site, x, y, shape, group, rows, columns)
    if not rows.any(axis=(0, 1)).all():
        return None  # a row of the kernel meets nothing but padding
    return _of_rows(site, windows, x, y, shape, group, rows, columns)


def _meeting(axis: Axis) -> _Mask:
    """[out, extent, kernel]: whether a tap of a window meets an element."""
    assert axis.out is not None and axis.extent is not None  # noqa: PT018, S101 - they are known
    assert axis.kernel is not None and axis.begin is not None  # noqa: PT018, S101
    window, element, tap = np.ogrid[: axis.out, : axis.extent, : axis.kernel]
    met: _Mask = element == window * axis.stride + tap * axis.dilation - axis.begin
    return met


def _of_images(
    site: Site,
    x: ir.Value,
    y: ir.Value,
    shape: tuple[int, ...],
    group: int,
    rows: _Mask,
    columns: _Mask,
) -> ir.Value:
    """[C, elements of Y, elements of X], then which of them belong to which tap."""
    left, right = reshape(site, y, 0, group, -1), reshape(site, x, 0, group, -1)
    products = site.microsoft("FusedMatMul", left, right, transBatchA=1, transBatchB=1, transA=1)
    # [out, out, extent, extent, kernel, kernel] of rows and columns in turn
    wanted = np.einsum("oek,pfl->opefkl", rows, columns).reshape(-1, shape[2] * shape[3])
    mask = site.constant(wanted, dtype_of(y))
    return reshape(site, site.op("MatMul", reshape(site, products, shape[0], len(wanted)), mask), shape)


def _of_rows(
    site: Site,
    windows: Windows,
    x: ir.Value,
    y: ir.Value,
    shape: tuple[int, ...],
    group: int,
    rows: _Mask,
    columns: _Mask,
) -> ir.Value:
    """[C, columns of Y, columns of X] for each row of the kernel, then which of them belong to which column of it."""
    _, height, taps = rows.shape
    out_width, width, _ = columns.shape
    wanted = columns.reshape(-1, shape[3])
    mask = site.constant(wanted, dtype_of(y))
    y, x = (site.op("Transpose", value, perm=[1, 0, 2, 3]) for value in (y, x))
    results = []
    for tap in range(taps):
        met = np.argwhere(rows[:, :, tap])
        (first, begin), (last, end) = met[0], met[-1]
        left = _rows(site, y, first, last, 1, len(rows))
        right = _rows(site, x, begin, end, windows.axes[0].stride, height)
        left = reshape(site, left, group, shape[0] // group, -1, out_width)
        right = reshape(site, right, group, 1, -1, width)
        products = reshape(site, site.microsoft("FusedMatMul", left, right, transA=1), shape[0], 1, len(wanted))
        results.append(site.op("MatMul", products, mask))
    return reshape(site, site.op("Concat", *results, axis=1), shape)


def _rows(site: Site, value: ir.Value, first: int, last: int, step: int, height: int) -> ir.Value:
    """Every so many rows of [C, N, height, width], from the first to the last."""
    if (first, last, step) == (0, height - 1, 1):
        return value
    starts, ends, axes = site.int64([first]), site.int64([last + 1]), site.int64([2])
    return site.op("Slice", value, starts, ends, axes, *([site.int64([step])] if step > 1 else []))
