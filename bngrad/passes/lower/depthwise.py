"""The gradient of a depthwise convolution with respect to its weights.

A channel has few products: dW[m, k] = sum over n, o of dY[n, m, o] X[n, c, o stride + k dilation - begin]. In two
dimensions of known size a matrix product computes more products than needed, but all at once; the others get the
factor 0 (so an infinity makes the gradients of its channel NaN):

- small images: G = sum over n of dY[n]^T X[n] holds every element of Y by every element of X;
- wider ones: for each row of the kernel, T = sum over n and rows of dY^T X holds every column of Y by every column
  of X, from the rows that this row of the kernel brings together;
- others: for each kernel element the elementwise product of dY and a part of X, and its sum.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import onnx_ir as ir

from bngrad.graph.node_reader import dtype_of
from bngrad.passes.lower import sliding
from bngrad.passes.lower.shapes import reshape, spatial

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from bngrad.passes.lower.convolution_operands import ConvolutionOperands
    from bngrad.passes.lower.site import Site
    from bngrad.passes.lower.windows import Axis

    _Mask: TypeAlias = NDArray[np.bool_]

_SMALL_IMAGE = 4096
"""The most elements of one channel's G."""
_WIDE_IMAGE = 40
"""Columns for each column of the kernel: beyond it most of T is not needed."""
_LARGE_MASK = 1 << 26
"""The most elements of a constant."""
_TO_THE_END = 2**62
"""The end of a Slice that takes all elements."""


def weight_gradient(operands: ConvolutionOperands) -> ir.Value:
    """Returns dW [M, 1, *kernel], with M / group weights for a channel."""
    windows = operands.windows
    if windows.rank != 2 or not windows.fixed or windows.number is None or windows.size is None:
        return of_kernel_elements(operands)
    if windows.number * windows.size <= _SMALL_IMAGE:
        return of_images(operands)
    if any(_size(axis) > _LARGE_MASK for axis in windows.axes):
        return of_kernel_elements(operands)
    rows, columns = (_meeting(axis) for axis in windows.axes)
    # A row of the kernel that meets nothing but padding would leave nothing to multiply.
    if columns.shape[1] <= _WIDE_IMAGE * columns.shape[2] and rows.any(axis=(0, 1)).all():
        return of_rows(operands)
    return of_kernel_elements(operands)


def of_images(operands: ConvolutionOperands) -> ir.Value:
    """G, times a mask of the elements that belong to each kernel element."""
    site, group = operands.site, operands.group
    rows, columns = (_meeting(axis) for axis in operands.windows.axes)
    left = reshape(site, operands.y, 0, group, operands.m // group * len(rows) * len(columns))
    right = reshape(site, operands.x, 0, group, rows.shape[1] * columns.shape[1])
    shape = (group, operands.m // group * len(rows) * len(columns), rows.shape[1] * columns.shape[1])
    products = _products(operands, left, right, shape, transBatchA=1, transBatchB=1)
    # [out, out, size, size, kernel, kernel], each pair of rows and columns
    selected = np.einsum("oek,pfl->opefkl", rows, columns).reshape(-1, prod(operands.kernel))
    mask = site.constant(selected, dtype_of(operands.y))
    dW = site.op("MatMul", reshape(site, products, operands.m, len(selected)), mask)
    return reshape(site, dW, operands.m, 1, operands.kernel)


def of_rows(operands: ConvolutionOperands) -> ir.Value:
    """T for each row of the kernel, times a mask of the elements that belong to each column."""
    site, group = operands.site, operands.group
    rows, columns = (_meeting(axis) for axis in operands.windows.axes)
    selected = columns.reshape(-1, columns.shape[2])
    mask = site.constant(selected, dtype_of(operands.y))
    y, x = (site.op("Transpose", value, perm=[1, 0, 2, 3]) for value in (operands.y, operands.x))
    results = []
    for offset in range(rows.shape[2]):
        met = np.argwhere(rows[:, :, offset])
        (first, begin), (last, end) = met[0], met[-1]
        left = _rows(site, y, first, last, 1, rows.shape[0])
        right = _rows(site, x, begin, end, operands.windows.stride[0], rows.shape[1])
        left = reshape(site, left, group, operands.m // group, -1, columns.shape[0])
        right = reshape(site, right, group, 1, -1, columns.shape[1])
        products = _products(operands, left, right, (group, operands.m // group, *columns.shape[:2]))
        results.append(site.op("MatMul", reshape(site, products, operands.m, 1, len(selected)), mask))
    return reshape(site, site.op("Concat", *results, axis=1), operands.m, 1, operands.kernel)


def of_kernel_elements(operands: ConvolutionOperands) -> ir.Value:
    """For each kernel element the sum of dY times the elements of X that it meets."""
    site, windows, rank = operands.site, operands.windows, operands.windows.rank
    x, y = sliding.span(site, windows, operands.x, operands.y), operands.y
    several = operands.m > operands.group
    if several:
        y = reshape(site, y, 0, operands.group, operands.m // operands.group, spatial(site, y, rank))
    axes, steps = site.int64(list(range(2, 2 + rank))), site.int64(windows.stride)
    summed = site.int64([0, *range(2 + several, 2 + several + rank)])
    sums = []
    for offset in product(*map(range, operands.kernel)):
        start = [k * d for k, d in zip(offset, windows.dilation, strict=True)]
        left = [(n - 1 - k) * d for n, k, d in zip(operands.kernel, offset, windows.dilation, strict=True)]
        end = [-number or _TO_THE_END for number in left]
        met = site.op("Slice", x, site.int64(start), site.int64(end), axes, steps)
        if several:
            met = site.op("Unsqueeze", met, site.int64([2]))
        total = site.op("ReduceSum", site.op("Mul", y, met), summed, keepdims=0)
        sums.append(reshape(site, total, operands.m, 1))
    return reshape(site, site.op("Concat", *sums, axis=1), operands.m, 1, operands.kernel)


def _products(
    operands: ConvolutionOperands, left: ir.Value, right: ir.Value, shape: Sequence[int], **attributes: int
) -> ir.Value:
    """The products of dY and X, with their type and shape, which onnx does not infer and `LiveBytes` needs."""
    result = operands.site.microsoft("FusedMatMul", left, right, **attributes, transA=1)
    result.dtype, result.shape = dtype_of(operands.y), ir.Shape(shape)
    return result


def _meeting(axis: Axis) -> _Mask:
    """A mask [out, size, kernel] of the elements of the data that each kernel element of a window meets."""
    assert axis.out is not None and axis.size is not None  # noqa: PT018, S101 - they are known
    assert axis.kernel is not None and axis.begin is not None  # noqa: PT018, S101
    window, element, offset = np.ogrid[: axis.out, : axis.size, : axis.kernel]
    met: _Mask = element == window * axis.stride + offset * axis.dilation - axis.begin
    return met


def _size(axis: Axis) -> int:
    """The number of elements of `_meeting`."""
    return (axis.out or 0) * (axis.size or 0) * (axis.kernel or 0)


def _rows(site: Site, value: ir.Value, first: int, last: int, step: int, height: int) -> ir.Value:
    """Every ``step``-th row of [C, N, height, width], from the first to the last."""
    if (first, last, step) == (0, height - 1, 1):
        return value
    return site.op("Slice", value, *(site.int64([number]) for number in (first, last + 1, 2, step)))
