"""The gradient of a convolution by its data, dX += W dY over all windows.

It has three forms. `data_gradient` takes what is fastest; tests/bench/bench_conv_grad.py measures them.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from bngrad.passes.lower import sliding
from bngrad.passes.lower.shapes import by_channel, reshape, spatial

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from bngrad.passes.lower.convolution_operands import Parts
    from bngrad.passes.lower.site import Site

_LARGE_MATRIX = 1000
"""Weights for each window of an image, with one tap: above it `product` is faster than `conv`."""
_FEW_WINDOWS = 200
"""Windows of an image times C / M, with more taps: below it `conv_transpose` is no slower than `conv`."""


def data_gradient(parts: Parts, after: Sequence[ir.Value] = ()) -> ir.Value:
    """Returns dX, with the spatial shape of x.

    Args:
        parts: The convolution.
        after: What is to be computed first, see `_number`.
    """
    windows = parts.windows
    if not parts.known_shape or not windows.dense or windows.opposite_pads is None:
        return conv_transpose(parts, after)
    if parts.group > 1 or windows.number is None or windows.size is None:
        return conv(parts, after)
    if windows.pointwise:
        large = parts.m * parts.c > _LARGE_MATRIX * windows.number
        return product(parts, after) if large else conv(parts, after)
    few = windows.number * parts.c < _FEW_WINDOWS * parts.m
    # Where X is much larger than Y, most of what Conv multiplies is its padding.
    padded = 3 * windows.size > 4 * windows.number
    return conv_transpose(parts, after) if few or padded else conv(parts, after)


def conv_transpose(parts: Parts, after: Sequence[ir.Value] = ()) -> ir.Value:
    """ConvTranspose, for any windows.

    It makes a matrix of all taps of every window, and adds them up in one thread.
    """
    w = delayed(parts, after)
    return sliding.spread(parts.site, parts.windows, parts.y, parts.x, w, parts.group, parts.w)


def conv(parts: Parts, after: Sequence[ir.Value] = ()) -> ir.Value:
    """Stride 1: Conv of dY, with the channels of W exchanged and its taps in reverse order.

    It has better kernels than ConvTranspose, but works with all M channels for every element of X.
    """
    site, m, taps = parts.site, parts.m // parts.group, prod(parts.kernel)
    w = reshape(site, parts.w, _number(site, parts.group, after), m, parts.c, taps)
    if taps > 1:
        w = site.op("Gather", w, site.int64(list(reversed(range(taps)))), axis=3)
    if m > 1 or parts.c > 1:
        w = site.op("Transpose", w, perm=[0, 2, 1, 3])
    w = reshape(site, w, parts.group * parts.c, m, parts.kernel)
    windows = parts.windows
    return site.op("Conv", parts.y, w, pads=windows.opposite_pads, dilations=windows.dilation, group=parts.group)


def product(parts: Parts, after: Sequence[ir.Value] = ()) -> ir.Value:
    """One tap, stride 1, one group: W^T dY for all images at once, while Conv goes through W for each of them."""
    site, rank = parts.site, parts.windows.rank
    w = reshape(site, parts.w, _number(site, parts.m, after), -1)
    dX = site.microsoft("FusedMatMul", w, by_channel(site, parts.y, rank), transA=1)
    dX = reshape(site, dX, 0, -1, spatial(site, parts.x, rank))
    return site.op("Transpose", dX, perm=[1, 0, *range(2, 2 + rank)])


def delayed(parts: Parts, after: Sequence[ir.Value]) -> ir.Value:
    """The weights, if they have a known shape in a way that has to wait for other values: see `_number`."""
    if not after or not parts.known_shape:
        return parts.w
    return reshape(parts.site, parts.w, _number(parts.site, parts.m, after), parts.c, parts.kernel)


def _number(site: Site, number: int, after: Sequence[ir.Value]) -> int | ir.Value:
    """A number for a shape, computed in a way that has to wait for other values.

    ONNX Runtime orders nodes by their edges alone: without one from dW and dB to dX it computes the gradients of
    all weights last, and keeps every dY until then.
    """
    if not after:
        return number
    one = site.op("Min", site.int64([1]), *(site.op("Size", value) for value in after))
    return site.op("Max", site.int64([number]), one)
