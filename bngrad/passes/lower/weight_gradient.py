"""The gradient of a convolution with respect to its weights, dW = sum of dY X over all windows.

It has several forms. `weight_gradient` takes the fastest; tests/bench/bench_conv_grad.py measures them.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from bngrad.graph.shapes import dimension_of
from bngrad.passes.lower import depthwise, sliding
from bngrad.passes.lower.shapes import by_channel, by_image, number, reshape, spatial

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.passes.lower.convolution_operands import ConvolutionOperands


def weight_gradient(operands: ConvolutionOperands) -> ir.Value:
    """Returns dW, with the shape of w."""
    windows = operands.windows
    if not operands.known_shape:
        return exchanged(operands)
    m, c, number = operands.m // operands.group, operands.c, windows.number
    if windows.pointwise:
        small = number is not None and (m + c) * number < m * c
        return product(operands) if small and operands.group == 1 else product_by_image(operands)
    if operands.depthwise:
        return depthwise.weight_gradient(operands)
    if windows.dense and windows.opposite_pads is not None:
        # With more channels it copies more, but its result is faster to convert to the shape of W.
        fewer = m <= c if number is None else (m - c) * number <= m * c
        return over_gradient(operands) if fewer else over_data(operands)
    return over_data(operands)


def product_by_image(operands: ConvolutionOperands) -> ir.Value:
    """A kernel of one element: dY X^T for each image and group, and the sum over the images."""
    site, group = operands.site, operands.group
    windows = number(site, operands.y, operands.windows.rank)
    left = by_image(site, operands.y, group, operands.m // group, windows)
    right = by_image(site, _met(operands), group, operands.c, windows)
    # ONNX Runtime fuses the two where it has an op for both; WebGPU has none.
    dW = site.op("MatMul", left, site.op("Transpose", right, perm=[0, 1, 3, 2]))
    return reshape(
        site, site.op("ReduceSum", dW, site.int64([0]), keepdims=0), operands.m, operands.c, operands.kernel
    )


def product(operands: ConvolutionOperands) -> ir.Value:
    """A kernel of one element, one group: dY X^T over all images, for which both are transposed.

    For images smaller than W.
    """
    site, rank = operands.site, operands.windows.rank
    left, right = by_channel(site, operands.y, rank), by_channel(site, _met(operands), rank)
    dW = site.op("MatMul", left, site.op("Transpose", right, perm=[1, 0]))
    return reshape(site, dW, operands.m, operands.c, operands.kernel)


def over_data(operands: ConvolutionOperands) -> ir.Value:
    """Conv of X with dY as its kernel and the channels last: [M, *kernel, C / group].

    Conv builds a matrix with a column for each element of its result. With images for channels those would be only
    the kernel's, too few to be fast; with the channels of X as one more spatial dimension they are C times as
    many.
    """
    site, windows, rank = operands.site, operands.windows, operands.windows.rank
    x, pads = sliding.fit(site, windows, operands.x, operands.y, operands.w)
    dW = _correlate(operands, x, operands.y, operands.c, pads)
    # To [M, C, *kernel] in two steps that ONNX Runtime has fast code for.
    dW = site.op("Transpose", reshape(site, dW, operands.m, -1, operands.c), perm=[1, 0, 2])
    dW = reshape(site, dW, operands.kernel, operands.m, operands.c)
    return site.op("Transpose", dW, perm=[rank, rank + 1, *range(rank)])


def over_gradient(operands: ConvolutionOperands) -> ir.Value:
    """Stride 1: the same with X and dY exchanged, [C, *kernel, M / group] with the kernel reversed.

    Conv copies its data once for each kernel element, so its data should be the tensor with fewer channels; for
    small images it matters more that the elements of its result are moved a row at a time.
    """
    site, windows, group = operands.site, operands.windows, operands.group
    m, kernel_size = operands.m // group, prod(operands.kernel)
    pads = windows.opposite_pads
    assert pads is not None, "`weight_gradient` checks it"  # noqa: S101
    dW = reshape(site, _correlate(operands, operands.y, operands.x, m, pads), group * operands.c, kernel_size, m)
    dW = site.op("Gather", dW, site.int64(list(reversed(range(kernel_size)))), axis=1)
    if group > 1:
        dW = site.op("Transpose", reshape(site, dW, group, operands.c, kernel_size, m), perm=[0, 3, 1, 2])
        return reshape(site, dW, operands.m, operands.c, operands.kernel)
    rank = windows.rank
    return site.op(
        "Transpose", reshape(site, dW, operands.c, operands.kernel, m), perm=[rank + 1, *range(rank + 1)]
    )


def exchanged(operands: ConvolutionOperands) -> ir.Value:
    """Conv of X [C / group, group * N, ...] with the kernel dY [M, N, ...], for any windows and shapes."""
    site, windows, rank = operands.site, operands.windows, operands.windows.rank
    swap = [1, 0, *range(2, 2 + rank)]
    x, pads = sliding.fit(site, windows, operands.x, operands.y, operands.w)
    if operands.group == 1:
        x = site.op("Transpose", x, perm=swap)
    else:
        size = spatial(site, x, rank)
        x = reshape(site, x, 0, operands.group, dimension_of(site, operands.w, 1), size)
        x = reshape(site, site.op("Transpose", x, perm=[2, 1, 0, *range(3, 3 + rank)]), 0, -1, size)
    y = site.op("Transpose", operands.y, perm=swap)
    attributes = {"pads": pads, "strides": windows.dilation, "dilations": windows.stride, "group": operands.group}
    dW = site.op("Transpose", site.op("Conv", x, y, **attributes), perm=swap)
    return sliding.crop(site, dW, operands.w, rank) if windows.leftover(windows.dilation) else dW


def _met(operands: ConvolutionOperands) -> ir.Value:
    """A kernel of one element: the elements of X that are in a window."""
    site, windows, x = operands.site, operands.windows, operands.x
    if not windows.dense:
        # The fastest op that takes every n-th element: Slice copies them one by one.
        x = site.op("AveragePool", x, kernel_shape=[1] * windows.rank, strides=windows.stride)
    return sliding.crop(site, x, operands.y, windows.rank) if windows.leftover(windows.stride) else x


def _correlate(
    operands: ConvolutionOperands, data: ir.Value, by: ir.Value, channels: int, pads: list[int]
) -> ir.Value:
    """Conv of data [N, group * channels, ...] with the kernel ``by`` [N, B, ...]: [B, *kernel, channels].

    Its strides are the dilations of the windows, and its dilations their strides.
    """
    site, windows, rank, group = operands.site, operands.windows, operands.windows.rank, operands.group
    size = spatial(site, data, rank)
    if group == 1:
        data = site.op("Transpose", data, perm=[0, *range(2, 2 + rank), 1])
    else:
        data = reshape(site, data, 0, group, channels, size)
        data = site.op("Transpose", data, perm=[1, 0, *range(3, 3 + rank), 2])
    by = site.op("Transpose", by, perm=[1, 0, *range(2, 2 + rank)])
    if isinstance(size, list) and windows.dilation[-1] == 1:
        # The last two dimensions as one, in which a step is C elements: fewer, longer runs to copy.
        data = reshape(site, data, 1, -1, _widened(size, channels))
        ends, pads = (
            _widened(operands.kernel, channels),
            _widened(pads[:rank], channels) + _widened(pads[rank:], channels),
        )
        strides, dilations = windows.dilation, _widened(windows.stride, channels)
    else:
        data = reshape(site, data, 1, -1, size, channels)
        by = site.op("Unsqueeze", by, site.int64([2 + rank]))
        ends, pads = [*operands.kernel, channels], [*pads[:rank], 0, *pads[rank:], 0]
        strides, dilations = [*windows.dilation, 1], [*windows.stride, 1]
    result = site.op("Conv", data, by, pads=pads, strides=strides, dilations=dilations, group=group)
    if windows.leftover(windows.dilation):
        starts, axes = [0] * len(ends), list(range(2, 2 + len(ends)))
        result = site.op("Slice", result, site.int64(starts), site.int64(ends), site.int64(axes))
    return result


def _widened(numbers: list[int], channels: int) -> list[int]:
    return [*numbers[:-1], numbers[-1] * channels]
