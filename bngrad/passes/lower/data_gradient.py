"""The gradient of a convolution with respect to its data, dX += W dY over all windows.

It has three forms. `data_gradient` takes the fastest; tests/bench/bench_conv_grad.py measures them.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.passes.lower import sliding
from bngrad.passes.lower.shapes import by_channel, reshape, spatial

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.passes.lower.convolution_operands import ConvolutionOperands

_LARGE_MATRIX = 16000
"""Weights for each window of an image, with a kernel of one element: above it `product` is faster than `conv`."""
_FEW_WINDOWS = 200
"""Windows of an image times C / M, with a larger kernel: below it `conv_transpose` is no slower than `conv`."""


def data_gradient(operands: ConvolutionOperands, after: Sequence[ir.Value] = ()) -> ir.Value:
    """Returns dX, with the spatial shape of x.

    Args:
        operands: The convolution.
        after: Values that must be computed first, see `_reshaped`.
    """
    windows = operands.windows
    if not operands.known_shape or not windows.dense or windows.opposite_pads is None:
        return conv_transpose(operands, after)
    if operands.group > 1 or windows.number is None or windows.size is None:
        return conv(operands, after)
    if windows.pointwise:
        large = operands.m * operands.c > _LARGE_MATRIX * windows.number
        return product(operands, after) if large else conv(operands, after)
    few = windows.number * operands.c < _FEW_WINDOWS * operands.m
    # Where X is much larger than Y, Conv multiplies mostly padding.
    padded = 3 * windows.size > 4 * windows.number
    return conv_transpose(operands, after) if few or padded else conv(operands, after)


def conv_transpose(operands: ConvolutionOperands, after: Sequence[ir.Value] = ()) -> ir.Value:
    """ConvTranspose, for any windows.

    It builds a matrix of all elements of every window, and adds them up in one thread.
    """
    w = delayed(operands, after)
    return sliding.spread(operands.site, operands.windows, operands.y, operands.x, w, operands.group, operands.w)


def conv(operands: ConvolutionOperands, after: Sequence[ir.Value] = ()) -> ir.Value:
    """Stride 1: Conv of dY, with the channels of W exchanged and its kernel reversed.

    It has better kernels than ConvTranspose, but works with all M channels for every element of X.
    """
    site, m, kernel_size = operands.site, operands.m // operands.group, prod(operands.kernel)
    w = _reshaped(operands, (operands.group, m, operands.c * kernel_size), after)
    if m > 1:
        w = site.op("Transpose", w, perm=[0, 2, 1])
    if kernel_size > 1:
        # With its channels last, Gather copies rows: it copies single elements badly.
        w = reshape(site, w, operands.group * operands.c, kernel_size, m)
        w = site.op("Gather", w, site.int64(list(reversed(range(kernel_size)))), axis=1)
        w = site.op("Transpose", w, perm=[0, 2, 1]) if m > 1 else w
    shape = [operands.group * operands.c, m, *operands.kernel]
    w = _typed(operands, reshape(site, w, *shape), shape)
    windows = operands.windows
    return site.op(
        "Conv", operands.y, w, pads=windows.opposite_pads, dilations=windows.dilation, group=operands.group
    )


def product(operands: ConvolutionOperands, after: Sequence[ir.Value] = ()) -> ir.Value:
    """A kernel of one element, stride 1, one group: W^T dY for all images at once.

    Conv goes through W for each of them.
    """
    site, rank = operands.site, operands.windows.rank
    shape = (operands.m, operands.c)
    w = _typed(operands, _reshaped(operands, shape, after), shape)
    dX = site.op("MatMul", site.op("Transpose", w, perm=[1, 0]), by_channel(site, operands.y, rank))
    dX = reshape(site, dX, 0, -1, spatial(site, operands.x, rank))
    return site.op("Transpose", dX, perm=[1, 0, *range(2, 2 + rank)])


def delayed(operands: ConvolutionOperands, after: Sequence[ir.Value]) -> ir.Value:
    """The weights, if they have a known shape in a way that has to wait for other values: see `_reshaped`."""
    if not after or not operands.known_shape:
        return operands.w
    shape = [operands.m, operands.c, *operands.kernel]
    return _typed(operands, _reshaped(operands, shape, after), shape)


def _typed(operands: ConvolutionOperands, w: ir.Value, shape: Sequence[int]) -> ir.Value:
    """The value, with the type of the weights and a shape, which `BatchedConvOpPass` and `LiveBytes` need."""
    if operands.w.dtype is not None:
        w.dtype = operands.w.dtype
    w.shape = ir.Shape(shape)
    return w


def _reshaped(operands: ConvolutionOperands, shape: Sequence[int], after: Sequence[ir.Value]) -> ir.Value:
    """The weights with another shape, in a way that has to wait for other values.

    ONNX Runtime orders nodes only by their edges: without an edge from dW and dB to dX it computes the gradients
    of all weights last, and keeps every dY until then. It drops most of the edges by way of Concat, whose only
    unknown part it replaces by -1.
    """
    site = operands.site
    if not after:
        return reshape(site, operands.w, shape)
    unit = site.op("Min", site.int64([1]), *(site.op("Size", value) for value in after))
    if site.ordered:
        return site.op("Reshape", operands.w, site.op("Max", site.int64(list(shape)), unit))
    return reshape(site, operands.w, site.op("Max", site.int64([shape[0]]), unit), shape[1:])
