"""The gradient of a convolution by its weights, dW = sum of dY X over all windows.

It has several forms. `weight_gradient` takes what is fastest; tests/bench/bench_conv_grad.py measures them.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from bngrad.graph.shapes import extent_of
from bngrad.passes.lower import depthwise, sliding
from bngrad.passes.lower.shapes import by_channel, by_image, number, reshape, spatial

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.passes.lower.convolution_operands import Parts


def weight_gradient(parts: Parts) -> ir.Value:
    """Returns dW, with the shape of w."""
    windows = parts.windows
    if not parts.known_shape:
        return exchanged(parts)
    m, c, number = parts.m // parts.group, parts.c, windows.number
    if windows.pointwise:
        small = number is not None and (m + c) * number < m * c
        return product(parts) if small and parts.group == 1 else product_by_image(parts)
    if parts.depthwise:
        return depthwise.weight_gradient(parts)
    if windows.dense and windows.opposite_pads is not None:
        # More channels are more to copy, but in the end it has the faster way to the shape of W.
        fewer = m <= c if number is None else (m - c) * number <= m * c
        return over_gradient(parts) if fewer else over_data(parts)
    return over_data(parts)


def product_by_image(parts: Parts) -> ir.Value:
    """One tap: dY X^T for each image and group, and the sum over the images."""
    site, group = parts.site, parts.group
    windows = number(site, parts.y, parts.windows.rank)
    left = by_image(site, parts.y, group, parts.m // group, windows)
    right = by_image(site, _met(parts), group, parts.c, windows)
    dW = site.microsoft("FusedMatMul", left, right, transB=1)
    return reshape(site, site.op("ReduceSum", dW, site.int64([0]), keepdims=0), parts.m, parts.c, parts.kernel)


def product(parts: Parts) -> ir.Value:
    """One tap, one group: dY X^T over all images, for which both are transposed; for images smaller than W."""
    site, rank = parts.site, parts.windows.rank
    left, right = by_channel(site, parts.y, rank), by_channel(site, _met(parts), rank)
    return reshape(site, site.microsoft("FusedMatMul", left, right, transB=1), parts.m, parts.c, parts.kernel)


def over_data(parts: Parts) -> ir.Value:
    """Conv of X with dY as its kernel and the channels last: [M, *kernel, C / group].

    Conv makes a matrix with a column for each element of its result. With images for channels those would be the
    taps alone, too few to be fast; with the channels of X as one more spatial dimension they are C times as many.
    """
    site, windows, rank = parts.site, parts.windows, parts.windows.rank
    x, pads = sliding.fit(site, windows, parts.x, parts.y, parts.w)
    dW = _correlate(parts, x, parts.y, parts.c, pads)
    # To [M, C, *kernel] in two steps that ONNX Runtime has fast code for.
    dW = site.op("Transpose", reshape(site, dW, parts.m, -1, parts.c), perm=[1, 0, 2])
    dW = reshape(site, dW, parts.kernel, parts.m, parts.c)
    return site.op("Transpose", dW, perm=[rank, rank + 1, *range(rank)])


def over_gradient(parts: Parts) -> ir.Value:
    """Stride 1: the same with X and dY exchanged, [C, *kernel, M / group] with the taps in reverse order.

    Conv copies its data once for each tap, so these should be what has fewer channels; of small images it matters
    more that the taps of its result are brought into place a row at a time.
    """
    site, windows, group = parts.site, parts.windows, parts.group
    m, taps = parts.m // group, prod(parts.kernel)
    pads = windows.opposite_pads
    assert pads is not None, "it is for windows that have them"  # noqa: S101
    dW = reshape(site, _correlate(parts, parts.y, parts.x, m, pads), group * parts.c, taps, m)
    dW = site.op("Gather", dW, site.int64(list(reversed(range(taps)))), axis=1)
    if group > 1:
        dW = site.op("Transpose", reshape(site, dW, group, parts.c, taps, m), perm=[0, 3, 1, 2])
        return reshape(site, dW, parts.m, parts.c, parts.kernel)
    rank = windows.rank
    return site.op("Transpose", reshape(site, dW, parts.c, parts.kernel, m), perm=[rank + 1, *range(rank + 1)])


def exchanged(parts: Parts) -> ir.Value:
    """Conv of X [C / group, group * N, ...] with the kernel dY [M, N, ...]: whatever is known."""
    site, windows, rank = parts.site, parts.windows, parts.windows.rank
    swap = [1, 0, *range(2, 2 + rank)]
    x, pads = sliding.fit(site, windows, parts.x, parts.y, parts.w)
    if parts.group == 1:
        x = site.op("Transpose", x, perm=swap)
    else:
        extent = spatial(site, x, rank)
        x = reshape(site, x, 0, parts.group, extent_of(site, parts.w, 1), extent)
        x = reshape(site, site.op("Transpose", x, perm=[2, 1, 0, *range(3, 3 + rank)]), 0, -1, extent)
    y = site.op("Transpose", parts.y, perm=swap)
    attributes = {"pads": pads, "strides": windows.dilation, "dilations": windows.stride, "group": parts.group}
    dW = site.op("Transpose", site.op("Conv", x, y, **attributes), perm=swap)
    return sliding.crop(site, dW, parts.w, rank) if windows.leftover(windows.dilation) else dW


def _met(parts: Parts) -> ir.Value:
    """One tap: the elements of X that are in a window."""
    site, windows, x = parts.site, parts.windows, parts.x
    if not windows.dense:
        # The fastest op that takes every so many elements: Slice copies them one by one.
        x = site.op("AveragePool", x, kernel_shape=[1] * windows.rank, strides=windows.stride)
    return sliding.crop(site, x, parts.y, windows.rank) if windows.leftover(windows.stride) else x


def _correlate(parts: Parts, data: ir.Value, by: ir.Value, channels: int, pads: list[int]) -> ir.Value:
    """Conv of data [N, group * channels, ...] with the kernel ``by`` [N, B, ...]: [B, *kernel, channels].

    Its strides are the dilations of the windows, and its dilations their strides.
    """
    site, windows, rank, group = parts.site, parts.windows, parts.windows.rank, parts.group
    extent = spatial(site, data, rank)
    if group == 1:
        data = site.op("Transpose", data, perm=[0, *range(2, 2 + rank), 1])
    else:
        data = reshape(site, data, 0, group, channels, extent)
        data = site.op("Transpose", data, perm=[1, 0, *range(3, 3 + rank), 2])
    by = site.op("Transpose", by, perm=[1, 0, *range(2, 2 + rank)])
    if isinstance(extent, list) and windows.dilation[-1] == 1:
        # The last two dimensions as one, in which a step is C elements: fewer, longer runs to copy.
        data = reshape(site, data, 1, -1, _widened(extent, channels))
        ends, pads = (
            _widened(parts.kernel, channels),
            _widened(pads[:rank], channels) + _widened(pads[rank:], channels),
        )
        strides, dilations = windows.dilation, _widened(windows.stride, channels)
    else:
        data = reshape(site, data, 1, -1, extent, channels)
        by = site.op("Unsqueeze", by, site.int64([2 + rank]))
        ends, pads = [*parts.kernel, channels], [*pads[:rank], 0, *pads[rank:], 0]
        strides, dilations = [*windows.dilation, 1], [*windows.stride, 1]
    result = site.op("Conv", data, by, pads=pads, strides=strides, dilations=dilations, group=group)
    if windows.leftover(windows.dilation):
        starts, axes = [0] * len(ends), list(range(2, 2 + len(ends)))
        result = site.op("Slice", result, site.int64(starts), site.int64(ends), site.int64(axes))
    return result


def _widened(numbers: list[int], channels: int) -> list[int]:
    return [*numbers[:-1], numbers[-1] * channels]
