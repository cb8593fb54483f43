"""Gradients of MaxPool and AveragePool in standard ONNX.

Neither op has the shape of X as an input: it is in the type of dX, or in that of the forward node's input.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.batch_norms import SIXTEEN_BITS
from bngrad.graph.node_reader import like, read_attribute
from bngrad.opset.op_attributes import AVERAGE_POOL, MAX_POOL
from bngrad.passes.lower import sliding
from bngrad.passes.lower.geometry import declared_pads, windows_of
from bngrad.passes.lower.lowering import lowering
from bngrad.passes.lower.shapes import reshape, spatial, spatial_shape, spatial_sizes
from bngrad.passes.lower.site import forward_node

if TYPE_CHECKING:
    from bngrad.passes.lower.lowering import Outputs
    from bngrad.passes.lower.site import Site
    from bngrad.passes.lower.windows import Windows


def refusal(node: ir.Node) -> str | None:
    """Refuses a node for which the model does not state the spatial shape of X."""
    if _data(node) is None:
        return (
            "the spatial shape of its output is unknown: it is not in the model, and there is no forward node "
            f"with the name to which that of the {node.op_type} refers; expected either"
        )
    return None


def average_refusal(node: ir.Node) -> str | None:
    """Refuses the same, and windows for which ONNX Runtime's forward kernel differs from ONNX's definition."""
    if reason := refusal(node):
        return reason
    mode = read_attribute(node, "auto_pad", "NOTSET")
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        return None
    kernel = read_attribute(node, "kernel_shape", ())
    if any(dilation != 1 for dilation in read_attribute(node, "dilations", ())):
        return _SAME.format("dilations")
    strides, sizes = read_attribute(node, "strides", ()), spatial_sizes(_data(node), len(kernel))
    for length, stride, size in zip(kernel, strides, sizes, strict=False):
        surplus = length - stride if size is None else (-(-size // stride) - 1) * stride + length - size
        # ONNX has no padding then; ONNX Runtime halves it, towards 0, and leaves out that many leading elements.
        if surplus + (mode == "SAME_LOWER") <= -2:
            return _SAME.format("strides beyond its kernel")
    return None


_SAME = "it has auto_pad = SAME_* and {}, for which ONNX Runtime's AveragePool has other windows; expected pads"


@lowering("MaxPoolGrad", domain="", refusal=refusal, attributes=MAX_POOL)
def max_pool_grad(site: Site) -> Outputs:
    """MaxPoolGrad(dY, indices) -> dX: zeros, with dY added at the flat indices."""
    dY, indices = site.x(0), site.x(1)
    x = _known_data(site)
    windows = windows_of(site, x, dY, site.attribute("kernel_shape", ()))
    covered = windows.fixed and not windows.overlap and not any(windows.unread)
    if covered and dY.dtype == ir.DataType.FLOAT and not _misjudged(windows, dY):
        # Nothing to add up: three times as fast. Its kernel and pads only determine the size of X.
        return [
            site.op(
                "MaxUnpool",
                dY,
                indices,
                kernel_shape=windows.dilated_kernel,
                strides=windows.stride,
                pads=windows.pads,
            )
        ]
    shape = site.op("Concat", site.op("Shape", dY, start=0, end=2), spatial_shape(site, x, windows.rank), axis=0)
    # ScatterElements does not add in 16 bits.
    narrow = dY.dtype in SIXTEEN_BITS
    wide = ir.DataType.FLOAT if narrow else dY.dtype or ir.DataType.FLOAT
    size = site.reduce("ReduceProd", shape, [0], keepdims=True)
    zeros = site.op("ConstantOfShape", size, value=ir.tensor([0.0], dtype=wide))
    updates = reshape(site, site.cast(dY, wide) if narrow else dY, -1)
    dX = site.op("ScatterElements", zeros, reshape(site, indices, -1), updates, axis=0, reduction="add")
    dX = site.op("Reshape", dX, shape, allowzero=1)
    return [site.op("Cast", dX, to=int(dY.dtype)) if narrow and dY.dtype else dX]


@lowering("AveragePoolGrad", domain="", refusal=average_refusal, attributes=AVERAGE_POOL)
def average_pool_grad(site: Site) -> Outputs:
    """AveragePoolGrad(dY) -> dX: each window hands its share, dY / its count, to its elements.

    - Windows that tile X: every share repeated, which is Resize.
    - Stride 1: X is to Y as Y to X, so the shares' average times the size of the kernel.
    - Others: ConvTranspose with ones as weights.
    """
    x, dY = _known_data(site), site.x(0)
    kernel = list(site.attribute("kernel_shape", ()))
    windows, kernel_size = windows_of(site, x, dY, kernel), prod(kernel)
    number = partial(like, site, value=dY)
    out = [axis.out for axis in windows.axes if axis.out is not None]
    y = reshape(site, dY, 0, 0, out) if _misjudged(windows, dY) else dY
    if windows.tile:
        scales = site.constant([1, 1, *kernel], ir.DataType.FLOAT)
        mode = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return [site.op("Resize", site.op("Div", y, number(kernel_size)), None, scales, **mode)]
    counts = None if _all_count_alike(site, windows) else _counts(site, windows, x)
    pads = windows.opposite_pads
    if windows.dense and pads is not None and all(dilation == 1 for dilation in windows.dilation):
        if counts is not None:
            y = site.op("Mul", y, site.op("Div", number(kernel_size), counts))
        return [site.op("AveragePool", y, kernel_shape=kernel, pads=pads, count_include_pad=1)]
    # Divided by the count: the rounding of 1 / count would be the same error everywhere.
    share = site.op("Div", y, number(kernel_size) if counts is None else counts)
    planes = reshape(site, share, -1, 1, out if len(out) == windows.rank else spatial(site, dY, windows.rank))
    ones = site.op("Expand", number(1.0), site.int64([1, 1, *kernel]))
    dX = sliding.spread(site, windows, planes, x, ones)
    return [reshape(site, dX, site.op("Shape", dY, start=0, end=2), spatial(site, x, windows.rank))]


def _known_data(site: Site) -> ir.Value:
    x = _data(site.node)
    assert x is not None, "a node without it is refused"  # noqa: S101
    return x


def _data(node: ir.Node) -> ir.Value | None:
    """A value with the spatial shape of X, the only property of X that a gradient needs."""
    dX = node.outputs[0]
    if dX.shape is not None and None not in spatial_sizes(dX, 0):
        return dX
    indices = node.inputs[1] if len(node.inputs) > 1 else None
    forward = None if indices is None else indices.producer()
    forward = forward or forward_node(node)
    return None if forward is None or not forward.inputs else forward.inputs[0]


def _misjudged(windows: Windows, dY: ir.Value) -> bool:
    """Tests whether the model has a wrong shape of dY: below opset 22 onnx counts an empty window of ceil_mode."""
    pairs = zip(windows.axes, spatial_sizes(dY, windows.rank), strict=True)
    return any(axis.out != size for axis, size in pairs if axis.out is not None and size is not None)


def _all_count_alike(site: Site, windows: Windows) -> bool:
    """Tests whether every window is sure to count all its elements."""
    loose = bool(site.attribute("ceil_mode", 0))
    include = bool(site.attribute("count_include_pad", 0))
    if include and (windows.same or not loose):
        return True
    for axis, (before, after) in zip(windows.axes, declared_pads(site, len(windows.axes)), strict=True):
        # Without ceil_mode no window reaches beyond the declared padding.
        end = after if axis.end is None and not windows.same and not loose else axis.end
        begin = axis.begin
        if begin is None or end is None or begin > before * include or end > after * include:
            return False
    return True


def _counts(site: Site, windows: Windows, x: ir.Value) -> ir.Value:
    """The number of each window's elements that lie in X, or with count_include_pad in its declared pads."""
    dY, rank = site.x(0), len(windows.axes)
    pads = declared_pads(site, rank) if site.attribute("count_include_pad", 0) else [(0, 0)] * rank
    shape = site.op("Add", spatial_shape(site, x, rank), site.int64([sum(both) for both in pads]))
    unit = like(site, 1.0, dY)
    ones = site.op("Expand", unit, site.op("Concat", site.int64([1, 1]), shape, axis=0))
    within = [
        replace(
            axis,
            begin=None if axis.begin is None else axis.begin - before,
            end=None if axis.end is None else axis.end - after,
        )
        for axis, (before, after) in zip(windows.axes, pads, strict=True)
    ]
    data, padding = sliding.fit(site, replace(windows, axes=tuple(within)), ones, dY, None)
    ones = site.op("Expand", unit, site.int64([1, 1, *(axis.kernel or 1 for axis in windows.axes)]))
    return site.op("Conv", data, ones, pads=padding, strides=windows.stride, dilations=windows.dilation)
