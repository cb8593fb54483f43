"""The gradient of Slice in standard ONNX."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.node_reader import axes_refusal, constant_of, dtype_of, known_integers
from bngrad.graph.pads import pads_of_all_axes
from bngrad.graph.shapes import known_dimension, zeros
from bngrad.passes.lower import indexing
from bngrad.passes.lower.lowering import lowering

if TYPE_CHECKING:
    from bngrad.passes.lower.lowering import Outputs
    from bngrad.passes.lower.site import Site

_PARTS = ("starts", "ends", "axes", "steps")


def refusal(node: ir.Node) -> str | None:
    """Returns the reason why a SliceGrad cannot be lowered; None if it can."""
    shape, *numbers = _slices(node)
    axes = numbers[-1]
    has_steps = len(node.inputs) > 5 and node.inputs[5] is not None
    numbers.append(known_integers(node, 5) if has_steps else None)
    lengths = {len(values) for values in numbers if values is not None}
    if len(lengths) > 1:
        counts = [
            f"{len(values)} {what}" for values, what in zip(numbers, _PARTS, strict=True) if values is not None
        ]
        return f"it has {', '.join(counts[:-1])} and {counts[-1]}; expected as many of each"
    reason = axes_refusal(axes, len(shape)) if shape is not None and axes is not None else None
    return reason or indexing.refusal(node)


@lowering("SliceGrad", refusal=refusal)
def slice_grad(site: Site) -> Outputs:
    """SliceGrad(dY, shape, starts, ends, axes, steps) -> dX of the shape: dX[slice] = dY, else 0.

    Where all steps are 1, dX is dY with zeros around it. Otherwise the same Slice of the positions in X gives the
    positions of the elements.
    """
    steps = constant_of(site.optional(5))
    if site.optional(5) is None or (steps is not None and (steps == 1).all()):
        pads = _pads(site)
        if pads is not None:
            return [site.op("Pad", site.x(0), site.int64(pads))]
        if site.has(4) or site.known_int64(2) is not None:
            return [_padded_at_run_time(site)]
    return [_scattered(site)]


def _pads(site: Site) -> list[int] | None:
    """The zeros before each axis, then those after; None if they are known only at run time."""
    shape, starts, ends, axes = _slices(site.node)
    if shape is None or starts is None or ends is None or axes is None:
        return None
    pads = [0] * (2 * len(shape))
    for start, end, axis in zip(starts, ends, axes, strict=True):
        size = shape[axis]
        if not isinstance(size, int):
            return None
        begin, stop, _ = slice(start, end).indices(size)
        pads[axis % len(shape)], pads[axis % len(shape) + len(shape)] = begin, size - max(begin, stop)
    return pads


def _slices(node: ir.Node) -> tuple[ir.Shape | None, list[int] | None, list[int] | None, list[int] | None]:
    """The shape of dX, and the starts, ends and axes, as far as they are known."""
    starts, ends = known_integers(node, 2), known_integers(node, 3)
    has_axes = len(node.inputs) > 4 and node.inputs[4] is not None
    axes = known_integers(node, 4) if has_axes else None if starts is None else list(range(len(starts)))
    return node.outputs[0].shape, starts, ends, axes


def _padded_at_run_time(site: Site) -> ir.Value:
    dY, zero = site.x(0), site.int64(0)
    axes = site.x(4) if site.has(4) else site.int64(list(range(len(site.known_int64(2) or ()))))
    size, length = (site.op("Gather", shape, axes) for shape in (site.x(1), site.op("Shape", dY)))
    start = site.cast(site.x(2), ir.DataType.INT64)
    begin = site.op("Where", site.op("Less", start, zero), site.op("Add", start, size), start)
    begin = site.op("Min", site.op("Max", begin, zero), size)
    end = site.op("Sub", site.op("Sub", size, begin), length)
    return site.op("Pad", dY, pads_of_all_axes(site, site.op("Concat", begin, end, axis=0), axes, dY))


def _scattered(site: Site) -> ir.Value:
    dY, shape, flat = site.x(0), site.x(1), site.int64([-1])
    nothing = site.op("Reshape", zeros(site, shape, dtype_of(site.node.outputs[0])), flat)
    count = site.op("Squeeze", site.op("Shape", nothing))
    positions = site.op("Reshape", site.op("Range", site.int64(0), count, site.int64(1)), shape, allowzero=1)
    starts, ends, axes, steps = (site.optional(index) for index in range(2, 6))
    if axes is None and steps is not None:
        # Without axes, ONNX Runtime's optimizer removes a Slice from 0 to the end, whatever its steps.
        length = known_dimension(starts, 0) if starts is not None else None
        axes = (
            site.op("Range", site.int64(0), site.op("Size", starts), site.int64(1))
            if length is None
            else site.int64(list(range(length)))
        )
    taken = site.op("Reshape", site.op("Slice", positions, starts, ends, axes, steps), flat)
    placed = site.op("ScatterElements", nothing, taken, site.op("Reshape", dY, flat), axis=0)
    return site.op("Reshape", placed, shape, allowzero=1)
