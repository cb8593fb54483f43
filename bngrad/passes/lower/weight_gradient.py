"""The gradient of a convolution by its weights, dW = sum of dY X over all windows, in the form that is fastest.

- MatMul: a kernel of one tap. Either one for each image, and a sum over them; or one over all of them, for which X
  and dY have to be transposed: better where those are small beside dW.
- Depthwise: see depthwise.py.
- Conv with channels last: a Conv whose channels are the images, whose kernel is as large as dY and whose result is as
  large as W has one column of its matrix for each tap, too few to be fast. With the channels of the data as one more
  spatial dimension, the innermost, it has C of them; strides become dilations, and dilations strides.
  With stride 1, X and dY may change places: then it gives the taps in reverse order. The one with fewer channels
  should be the data, which Conv copies once for each tap.
- Conv with channels and images exchanged: the weights' shape takes a run to tell.

tests/bench/bench_conv_grad.py measures them.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from bngrad.passes.lower import depthwise, sliding
from bngrad.passes.lower.shapes import reshape, spatial
from bngrad.passes.node_view import static_shape

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.passes.lower.site import Site
    from bngrad.passes.lower.windows import Windows


def weight_gradient(site: Site, windows: Windows, x: ir.Value, y: ir.Value, w: ir.Value, group: int) -> ir.Value:
    """Returns dW [M, C / group, *kernel].

    Args:
        site: Where.
        windows: The windows over x.
        x: The data [N, C, ...].
        y: dY [N, M, ...].
        w: What has the shape of dW.
        group: As of Conv.
    """
    shape = static_shape(w)
    if shape is None:
        return _exchanged(site, windows, x, y, w, group)
    if windows.pointwise:
        return _product(site, windows, x, y, shape, group)
    if shape[1] == 1 and (result := depthwise.weight_gradient(site, windows, x, y, shape, group)):
        return result
    pads = windows.opposite_pads
    if pads is not None and windows.dense and shape[0] // group <= shape[1]:
        return _over_gradient(site, windows, x, y, shape, group, pads)
    return _over_data(site, windows, x, y, w, shape, group)


def _product(
    site: Site, windows: Windows, x: ir.Value, y: ir.Value, shape: tuple[int, ...], group: int
) -> ir.Value:
    """One tap: dY X^T, over the elements of X that are in a window."""
    m, c = shape[:2]
    if not windows.dense:
        # The fastest op that takes every so many elements: Slice copies them one by one.
        x = site.op("AveragePool", x, kernel_shape=[1] * windows.rank, strides=windows.stride)
    if windows.fixed and any(u >= s for u, s in zip(windows.unread, windows.stride, strict=True)):
        x = sliding.crop(site, x, y, windows.rank)
    if group == 1 and windows.number is not None and m * c > (m + c) * windows.number:
        product = site.microsoft("FusedMatMul", _by_channel(site, y, m), _by_channel(site, x, c), transB=1)
    else:
        left, right = reshape(site, y, 0, group, m // group, -1), reshape(site, x, 0, group, c, -1)
        product = site.microsoft("FusedMatMul", left, right, transB=1)
        product = site.op("ReduceSum", product, site.int64([0]), keepdims=0)
    return reshape(site, product, shape)


def _by_channel(site: Site, value: ir.Value, channels: int) -> ir.Value:
    """[N, C, ...] -> [C, N * ...]."""
    return reshape(site, site.op("Transpose", reshape(site, value, 0, channels, -1), perm=[1, 0, 2]), channels, -1)


def _over_data(
    site: Site, windows: Windows, x: ir.Value, y: ir.Value, w: ir.Value, shape: tuple[int, ...], group: int
) -> ir.Value:
    """Conv of X with dY as its kernel: [M, *kernel, C / group]."""
    m, c, *kernel = shape
    data, pads = sliding.fit(site, windows, x, y, w)
    unread = windows.unread if windows.fixed else [0] * windows.rank
    result = _correlate(site, windows, data, y, c, group, pads, kernel, unread)
    # [M, taps, C] -> [M, C, taps] in two steps that ONNX Runtime has fast code for.
    result = site.op("Transpose", reshape(site, result, m, -1, c), perm=[1, 0, 2])
    return reshape(site, site.op("Transpose", reshape(site, result, -1, m * c), perm=[1, 0]), shape)


def _over_gradient(
    site: Site, windows: Windows, x: ir.Value, y: ir.Value, shape: tuple[int, ...], group: int, pads: list[int]
) -> ir.Value:
    """Stride 1: Conv of dY with X as its kernel: [C, *kernel, M / group] with the taps in reverse order."""
    m, c, *kernel = shape
    result = _correlate(site, windows, y, x, m // group, group, pads, kernel, [0] * windows.rank)
    taps = prod(kernel)
    result = reshape(site, result, group, c, taps, m // group)
    result = site.op("Gather", result, site.int64(list(reversed(range(taps)))), axis=2)
    return reshape(site, site.op("Transpose", result, perm=[0, 3, 1, 2]), shape)


def _correlate(
    site: Site,
    windows: Windows,
    data: ir.Value,
    by: ir.Value,
    channels: int,
    group: int,
    pads: list[int],
    kernel: list[int],
    unread: list[int],
) -> ir.Value:
    """Conv of data [N, group * channels, ...] with the kernel ``by`` [N, B, ...]: [B, *kernel, channels].

    Args:
        site: Where.
        windows: Whose strides are the Conv's dilations, and whose dilations its strides.
        data: The data.
        by: The kernel.
        channels: Of the data, in one group.
        group: As of Conv.
        pads: Of the data.
        kernel: The number of results in each dimension.
        unread: How many elements at the end of the padded data lead to no result.
    """
    rank = windows.rank
    extent = spatial(site, data, rank)
    if group == 1:
        data = site.op("Transpose", data, perm=[0, *range(2, 2 + rank), 1])
    else:
        split = reshape(site, data, 0, group, channels, extent)
        data = site.op("Transpose", split, perm=[1, 0, *range(3, 3 + rank), 2])
    by = site.op("Transpose", by, perm=[1, 0, *range(2, 2 + rank)])
    if isinstance(extent, list) and windows.dilation[-1] == 1:
        # The last two dimensions as one, in which a step is C elements: fewer, longer runs to copy.
        data = reshape(site, data, 1, -1, *_widen(extent, channels))
        ends = _widen(kernel, channels)
        pads = [*_widen(pads[:rank], channels), *_widen(pads[rank:], channels)]
        steps, dilations = windows.dilation, _widen(windows.stride, channels)
    else:
        data = reshape(site, data, 1, -1, extent, channels)
        by = site.op("Unsqueeze", by, site.int64([2 + rank]))
        ends = [*kernel, channels]
        pads = [*pads[:rank], 0, *pads[rank:], 0]
        steps, dilations = [*windows.dilation, 1], [*windows.stride, 1]
    result = site.op("Conv", data, by, pads=pads, strides=steps, dilations=dilations, group=group)
    if any(u >= d for u, d in zip(unread, windows.dilation, strict=True)):
        starts, axes = [0] * len(ends), list(range(2, 2 + len(ends)))
        result = site.op("Slice", result, site.int64(starts), site.int64(ends), site.int64(axes))
    return result


def _widen(numbers: list[int], channels: int) -> list[int]:
    return [*numbers[:-1], numbers[-1] * channels]


def _exchanged(site: Site, windows: Windows, x: ir.Value, y: ir.Value, w: ir.Value, group: int) -> ir.Value:
    """Conv of X [C / group, group * N, ...] with the kernel dY [M, N, ...]."""
    rank = windows.rank
    swap = [1, 0, *range(2, 2 + rank)]
    data, pads = sliding.fit(site, windows, x, y, w)
    if group == 1:
        data = site.op("Transpose", data, perm=swap)
    else:
        extent = spatial(site, data, rank)
        split = reshape(site, data, 0, group, -1, extent)
        data = reshape(site, site.op("Transpose", split, perm=[2, 1, 0, *range(3, 3 + rank)]), 0, -1, extent)
    by = site.op("Transpose", y, perm=swap)
    result = site.op("Conv", data, by, pads=pads, strides=windows.dilation, dilations=windows.stride, group=group)
    result = site.op("Transpose", result, perm=swap)
    if windows.fixed and any(u >= d for u, d in zip(windows.unread, windows.dilation, strict=True)):
        result = sliding.crop(site, result, w, rank)
    return result
