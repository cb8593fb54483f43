"""Sliding windows over data, and back: what the gradients of convolutions and pools have in common."""

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
    """Adds up w y over all windows, each where it is: the transpose of Conv.

    Args:
        site: Where.
        windows: The windows over x.
        y: What has an element for each window.
        x: What the result has the spatial shape of.
        w: The weights.
        group: As of Conv.
        kernel: What has the spatial shape of the kernel, if that takes a run to tell.
    """
    attributes = {"strides": windows.stride, "dilations": windows.dilation, "group": group}
    if windows.fixed:
        return site.op("ConvTranspose", y, w, pads=windows.pads, output_padding=windows.unread, **attributes)
    begin, behind = windows.at_run_time(site, x, y, kernel)
    whole = site.op("ConvTranspose", y, w, **attributes)
    return _pad(site, whole, site.op("Neg", begin), site.op("Neg", behind))


def fit(
    site: Site, windows: Windows, x: ir.Value, y: ir.Value, kernel: ir.Value | None = None
) -> tuple[ir.Value, list[int]]:
    """The data, and the pads that make of it what the windows span: with what is in no window still behind it."""
    if windows.fixed:
        return x, windows.pads
    return span(site, windows, x, y, kernel), [0] * (2 * windows.rank)


def span(site: Site, windows: Windows, x: ir.Value, y: ir.Value, kernel: ir.Value | None = None) -> ir.Value:
    """What the windows span: the data with zeros around it, without what is in no window."""
    if not windows.fixed:
        return _pad(site, x, *windows.at_run_time(site, x, y, kernel))
    begin = [axis.begin or 0 for axis in windows.axes]
    behind = [axis.behind or 0 for axis in windows.axes]
    return _pad(site, x, site.int64(begin), site.int64(behind)) if any((*begin, *behind)) else x


def crop(site: Site, value: ir.Value, like: ir.Value, rank: int) -> ir.Value:
    """The first elements of every spatial dimension, as many as another value has."""
    axes = site.int64(list(range(2, 2 + rank)))
    return site.op("Slice", value, site.int64([0] * rank), spatial_shape(site, like, rank), axes)


def _pad(site: Site, x: ir.Value, begin: ir.Value, behind: ir.Value) -> ir.Value:
    """Adds zeros to both ends of every spatial dimension, or takes away where the number is negative."""
    none = site.int64([0, 0])
    return site.op("Pad", x, site.op("Concat", none, begin, none, behind, axis=0))
