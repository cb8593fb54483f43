"""Gradients of Conv and ConvTranspose in standard ONNX.

With windows as in windows.py, and c running over the input channels of the group of m:

    Y[n, m, o] = B[m] + sum over c, k of W[m, c, k] X[n, c, o stride + k dilation - begin]
    dX[n, c, o stride + k dilation - begin] += sum over m of W[m, c, k] dY[n, m, o]
    dW[m, c, k] = sum over n, o of dY[n, m, o] X[n, c, o stride + k dilation - begin]
    dB[m] = sum over n, o of dY[n, m, o]

ConvTranspose is the same with X and Y exchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.passes.lower import sliding
from bngrad.passes.lower.data_gradient import data_gradient
from bngrad.passes.lower.shapes import extents
from bngrad.passes.lower.weight_gradient import weight_gradient
from bngrad.passes.lower.windows import transposed_windows_of, windows_of
from bngrad.passes.nodes import known_rank

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.passes.lower.site import Outputs, Site
    from bngrad.passes.lower.windows import Windows


def refusal(node: ir.Node) -> str | None:
    """The number of spatial dimensions must be known."""
    if known_rank([*node.inputs, *node.outputs[:2]]) is None and not node.attributes.get_ints("kernel_shape", ()):
        return "nobody knows its number of spatial dimensions; expected the attribute kernel_shape, or shapes"
    return None


def conv_grad(site: Site) -> Outputs:
    """ConvGrad(dY, X, W) -> (dX, dW, dB)."""
    dY, x, w = site.x(0), site.x(1), site.x(2)
    windows, group = windows_of(site, x, dY, _kernel(site)), site.attribute("group", 1)
    dW = weight_gradient(site, windows, x, dY, w, group) if site.has_output(1) else None
    return [
        data_gradient(site, windows, dY, x, w, group, dW) if site.has_output(0) else None,
        dW,
        _sum(site, dY, windows.rank) if site.has_output(2) else None,
    ]


def conv_transpose_grad(site: Site) -> Outputs:
    """ConvTransposeGrad(dY, X, W) -> (dX, dW, dB): what Conv does to X is done to dY."""
    dY, x, w = site.x(0), site.x(1), site.x(2)
    windows, group = transposed_windows_of(site, dY, x, _kernel(site)), site.attribute("group", 1)
    return [
        _conv(site, windows, dY, x, w, group) if site.has_output(0) else None,
        weight_gradient(site, windows, dY, x, w, group) if site.has_output(1) else None,
        _sum(site, dY, windows.rank) if site.has_output(2) else None,
    ]


def _kernel(site: Site) -> tuple[int | None, ...]:
    declared = tuple(site.attribute("kernel_shape", None) or ())
    rank = known_rank([*site.node.inputs, *site.node.outputs[:2]])
    return declared or extents(site.x(2), (rank or 2) - 2)


def _sum(site: Site, dY: ir.Value, rank: int) -> ir.Value:
    return site.reduce("ReduceSum", dY, [0, *range(2, 2 + rank)], keepdims=False)


def _conv(site: Site, windows: Windows, x: ir.Value, y: ir.Value, w: ir.Value, group: int) -> ir.Value:
    """Conv of x over its windows, one for each element of y."""
    data, pads = sliding.fit(site, windows, x, y, w)
    result = site.op("Conv", data, w, pads=pads, strides=windows.stride, dilations=windows.dilation, group=group)
    if windows.fixed and any(u >= s for u, s in zip(windows.unread, windows.stride, strict=True)):
        result = sliding.crop(site, result, y, windows.rank)
    return result
