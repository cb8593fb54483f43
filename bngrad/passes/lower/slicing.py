"""The gradient of Slice in standard ONNX."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.passes.extents import zeros
from bngrad.passes.node_view import constant_of, dtype_of

if TYPE_CHECKING:
    from bngrad.passes.lower.site import Outputs, Site


def slice_grad(site: Site) -> Outputs:
    """SliceGrad(dY, shape, starts, ends, axes, steps) -> dX of the shape: dX[slice] = dY, else 0.

    Where all steps are 1, dX is dY with zeros around it. Else the elements go to where a Slice of their positions
    says that they came from.
    """
    steps = constant_of(site.optional(5))
    if site.optional(5) is None or (steps is not None and (steps == 1).all()):
        pads = _pads(site)
        if pads is not None:
            return [site.op("Pad", site.x(0), site.int64(pads))]
        # Below 18 Pad has no axes.
        if site.opset >= 18 and (site.has(4) or site.known_int64(2) is not None):
            return [_padded_at_run_time(site)]
    return [_scattered(site)]


def _pads(site: Site) -> list[int] | None:
    """The zeros in front of each axis, then those behind; None where it takes a run to tell."""
    shape = site.node.outputs[0].shape
    starts, ends = site.known_int64(2), site.known_int64(3)
    axes = site.known_int64(4) if site.has(4) else list(range(len(starts or ())))
    if shape is None or starts is None or ends is None or axes is None:
        return None
    pads = [0] * (2 * len(shape))
    for start, end, axis in zip(starts, ends, axes, strict=True):
        extent = shape[axis]
        if not isinstance(extent, int):
            return None
        begin, stop, _ = slice(start, end).indices(extent)
        pads[axis % len(shape)], pads[axis % len(shape) + len(shape)] = begin, extent - max(begin, stop)
    return pads


def _padded_at_run_time(site: Site) -> ir.Value:
    dY, nought = site.x(0), site.int64(0)
    axes = site.x(4) if site.has(4) else site.int64(list(range(len(site.known_int64(2) or ()))))
    extent, length = (site.op("Gather", shape, axes) for shape in (site.x(1), site.op("Shape", dY)))
    start = site.cast(site.x(2), ir.DataType.INT64)
    begin = site.op("Where", site.op("Less", start, nought), site.op("Add", start, extent), start)
    begin = site.op("Min", site.op("Max", begin, nought), extent)
    behind = site.op("Sub", site.op("Sub", extent, begin), length)
    return site.op("Pad", dY, site.op("Concat", begin, behind, axis=0), None, axes)


def _scattered(site: Site) -> ir.Value:
    dY, shape, flat = site.x(0), site.x(1), site.int64([-1])
    nothing = site.op("Reshape", zeros(site, shape, dtype_of(site.node.outputs[0])), flat)
    count = site.op("Squeeze", site.op("Shape", nothing))
    positions = site.op("Reshape", site.op("Range", site.int64(0), count, site.int64(1)), shape)
    taken = site.op("Reshape", site.op("Slice", positions, *site.node.inputs[2:]), flat)
    placed = site.op("ScatterElements", nothing, taken, site.op("Reshape", dY, flat), axis=0)
    return site.op("Reshape", placed, shape)
