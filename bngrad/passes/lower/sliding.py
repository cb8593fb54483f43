"""Sliding windows over data, and their transpose, for the gradients of convolutions and pools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.passes.lower.shapes import spatial_shape

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.passes.lower.site import Site
    from bngrad.passes.lower.windows import Windows


def spread(
    site: Site,
    windows: Windows,
    y: ir.Value,
    x: ir.Value,
    w: ir.Value,
    group: int = 1,
    kernel: ir.Value | None = None,
) -> ir.Value:
    """Adds up w y over all windows, each at its position: the transpose of Conv.

    Args:
        site: The node that is lowered.
        windows: The windows over x.
        y: The tensor with an element for each window.
        x: A tensor with the spatial shape of the result.
        w: The weights.
        group: As of Conv.
        kernel: A tensor with the spatial shape of the kernel, if that is known only at run time.
    """
    attributes = {"strides": windows.stride, "dilations": windows.dilation, "group": group}
    if not windows.fixed:
        begin, end = windows.at_run_time(site, x, y, kernel)
        whole = site.op("ConvTranspose", y, w, **attributes)
        return _pad(site, whole, site.op("Neg", begin), site.op("Neg", end))
    # With uneven pads ONNX Runtime's CUDA provider leaves the node to the CPU.
    pads = [(axis.begin or 0, axis.end or 0) for axis in windows.axes]
    even = [max(min(pair), 0) for pair in pads]
    result = site.op("ConvTranspose", y, w, pads=[*even, *even], **attributes)
    ends = [[pad - pair[i] for pad, pair in zip(even, pads, strict=True)] for i in range(2)]
    return _pad(site, result, *map(site.int64, ends)) if any(map(any, ends)) else result


def fit(
    site: Site, windows: Windows, x: ir.Value, y: ir.Value, kernel: ir.Value | None = None
) -> tuple[ir.Value, list[int]]:
    """The data, and the pads that extend it to the span of the windows; unread elements at the end stay."""
    if windows.fixed:
        return x, windows.pads
    return span(site, windows, x, y, kernel), [0] * (2 * windows.rank)


def span(site: Site, windows: Windows, x: ir.Value, y: ir.Value, kernel: ir.Value | None = None) -> ir.Value:
    """The span of the windows: the data with zeros around it, without the elements that are in no window."""
    if not windows.fixed:
        return _pad(site, x, *windows.at_run_time(site, x, y, kernel))
    begin = [axis.begin or 0 for axis in windows.axes]
    end = [axis.end or 0 for axis in windows.axes]
    return _pad(site, x, site.int64(begin), site.int64(end)) if any((*begin, *end)) else x


def crop(site: Site, value: ir.Value, like: ir.Value, rank: int) -> ir.Value:
    """The first elements of every spatial dimension, as many as another value has."""
    axes = site.int64(list(range(2, 2 + rank)))
    return site.op("Slice", value, site.int64([0] * rank), spatial_shape(site, like, rank), axes)


def _pad(site: Site, x: ir.Value, begin: ir.Value, end: ir.Value) -> ir.Value:
    """Adds zeros to both ends of every spatial dimension, or removes elements where the number is negative."""
    none = site.int64([0, 0])
    return site.op("Pad", x, site.op("Concat", none, begin, none, end, axis=0))
