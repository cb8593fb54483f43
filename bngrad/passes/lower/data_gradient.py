"""The gradient of a convolution by its data, dX += W dY over all windows, in the form that is fastest.

- ConvTranspose: any windows.
- Conv of dY with the taps of W reversed and its channels exchanged: stride 1. Its kernels are better than those of
  ConvTranspose, which makes a matrix of all C taps of every window and adds them up in one thread; but it has to turn
  the weights over first, and it works with all M channels for every element of X: not for few windows, or many M.
- MatMul: a kernel of one tap and few windows.

tests/bench/bench_conv_grad.py measures them.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from bngrad.passes.lower import sliding
from bngrad.passes.lower.shapes import reshape, spatial
from bngrad.passes.node_view import static_shape

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.passes.lower.site import Site
    from bngrad.passes.lower.windows import Windows

_FEW_WINDOWS = 256
"""Of one image, for a kernel of one tap."""
_FEW_WINDOWS_PER_CHANNEL = 160
"""The same times C / M, for more taps: below it ConvTranspose is no slower than Conv."""


def data_gradient(
    site: Site,
    windows: Windows,
    y: ir.Value,
    x: ir.Value,
    w: ir.Value,
    group: int,
    after: ir.Value | None = None,
) -> ir.Value:
    """Returns dX, with the spatial shape of x.

    Args:
        site: Where.
        windows: The windows over x.
        y: dY [N, M, ...].
        x: What has the shape of dX [N, C, ...].
        w: The weights [M, C / group, *kernel].
        group: As of Conv.
        after: dW, if somebody needs it, which is to be computed first: see `_number`.
    """
    shape = static_shape(w)
    if shape is None:
        return sliding.spread(site, windows, y, x, w, group, w)
    number = windows.number
    if windows.dense:
        if windows.pointwise and group == 1 and number is not None and number < _FEW_WINDOWS:
            return _product(site, windows, y, x, reshape(site, w, _number(site, shape[0], shape, after), -1))
        pads = windows.opposite_pads
        if pads is not None and (group > 1 or _prefers_conv(windows, shape)):
            turned = _turned(site, w, shape, group, after)
            return site.op("Conv", y, turned, pads=pads, dilations=windows.dilation, group=group)
    if after is not None:
        w = reshape(site, w, _number(site, shape[0], shape, after), shape[1:])
    return sliding.spread(site, windows, y, x, w, group, w)


def _number(site: Site, number: int, shape: tuple[int, ...], after: ir.Value | None) -> int | ir.Value:
    """A divisor of the number of weights, for a shape, computed in a way that has to wait for dW.

    ONNX Runtime orders nodes by their edges alone: without one from dW to dX it computes all weight gradients last,
    and keeps every dY until then.
    """
    if after is None:
        return number
    return site.op("Div", site.op("Size", after), site.int64([prod(shape) // number]))


def _prefers_conv(windows: Windows, shape: tuple[int, ...]) -> bool:
    if windows.number is None or windows.size is None or windows.pointwise:
        return True
    m, c = shape[:2]
    # Where X is much larger than Y, most of what Conv multiplies is its padding.
    return windows.number * c >= _FEW_WINDOWS_PER_CHANNEL * m and 3 * windows.size <= 4 * windows.number


def _turned(site: Site, w: ir.Value, shape: tuple[int, ...], group: int, after: ir.Value | None) -> ir.Value:
    """[M, C / group, *kernel] -> [C, M / group, *kernel] with the taps in reverse order."""
    m, c, *kernel = shape
    taps = prod(kernel)
    turned = reshape(site, w, _number(site, group, shape, after), m // group, c, taps)
    if taps > 1:
        turned = site.op("Gather", turned, site.int64(list(reversed(range(taps)))), axis=3)
    if m > group or c > 1:
        turned = site.op("Transpose", turned, perm=[0, 2, 1, 3])
    return reshape(site, turned, group * c, m // group, kernel)


def _product(site: Site, windows: Windows, y: ir.Value, x: ir.Value, w: ir.Value) -> ir.Value:
    """One tap: W^T dY for each image."""
    product = site.microsoft("FusedMatMul", w, reshape(site, y, 0, 0, -1), transA=1)
    return reshape(site, product, 0, -1, spatial(site, x, windows.rank))
