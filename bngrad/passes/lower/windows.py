"""The windows that convolutions and pools slide over their data, as a lowering sees them.

Along one spatial dimension, window o and tap k meet the data at o stride + k dilation - begin. All windows together
span (out - 1) stride + (kernel - 1) dilation + 1 positions: `begin` of them in front of the data, and `behind` of
them behind it, which is negative where the last elements are in no window. Both are numbers where attributes and
static shapes tell; else `Windows.at_run_time` computes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, TypeAlias

from bngrad.passes.lower.shapes import extents, spatial_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from bngrad.passes.lower.site import Site

Known: TypeAlias = int | None
"""A number, or None where only a run tells it."""


@dataclass(frozen=True)
class Axis:
    """The windows along one spatial dimension."""

    extent: Known
    """Of the data."""
    out: Known
    """The number of windows."""
    kernel: Known
    """The number of taps."""
    stride: int
    dilation: int
    begin: Known
    behind: Known
    at_most: Known
    """No less than `behind`, and known more often."""
    output_padding: int = 0
    """Of a ConvTranspose, whose output is the data: what it adds behind the span."""

    @property
    def inside(self) -> bool:
        """Whether no window reaches beyond the data."""
        return self.begin is not None and self.begin <= 0 and self.at_most is not None and self.at_most <= 0


@dataclass(frozen=True)
class Windows:
    """The windows of one node."""

    axes: tuple[Axis, ...]
    same: bool
    """Whether padding is what auto_pad or output_shape makes it; else it is declared."""
    upper: bool
    """If `same`: whether the odd element goes behind the data."""

    @property
    def fixed(self) -> bool:
        """Whether all padding is known."""
        return all(axis.begin is not None and axis.behind is not None for axis in self.axes)

    @property
    def rank(self) -> int:
        """The number of spatial dimensions."""
        return len(self.axes)

    @property
    def inside(self) -> bool:
        """Whether no window reaches beyond the data."""
        return all(axis.inside for axis in self.axes)

    @property
    def pointwise(self) -> bool:
        """Whether each window is one element of the data."""
        return self.inside and all(axis.kernel == 1 for axis in self.axes)

    @property
    def dense(self) -> bool:
        """Whether there is a window at every element."""
        return all(axis.stride == 1 for axis in self.axes)

    @property
    def number(self) -> Known:
        """How many windows there are, of one image."""
        return _product([axis.out for axis in self.axes])

    @property
    def size(self) -> Known:
        """How many elements one image has in a channel."""
        return _product([axis.extent for axis in self.axes])

    @property
    def stride(self) -> list[int]:
        """For an attribute."""
        return [axis.stride for axis in self.axes]

    @property
    def dilation(self) -> list[int]:
        """For an attribute."""
        return [axis.dilation for axis in self.axes]

    @property
    def pads(self) -> list[int]:
        """The padding that the windows need, for an attribute; only if it is fixed."""
        return [*(axis.begin or 0 for axis in self.axes), *(max(axis.behind or 0, 0) for axis in self.axes)]

    @property
    def unread(self) -> list[int]:
        """The elements at the end that are in no window; only if the padding is fixed."""
        return [max(-(axis.behind or 0), 0) for axis in self.axes]

    @property
    def opposite_pads(self) -> list[int] | None:
        """With stride 1, the padding of y for which Conv over it meets it from all of x; None if some is negative."""
        if not self.fixed:
            return None
        reach = [((axis.kernel or 1) - 1) * axis.dilation for axis in self.axes]
        begin = [r - (axis.begin or 0) for r, axis in zip(reach, self.axes, strict=True)]
        behind = [r - (axis.behind or 0) for r, axis in zip(reach, self.axes, strict=True)]
        return [*begin, *behind] if min(*begin, *behind) >= 0 else None

    def at_run_time(self, site: Site, x: ir.Value, y: ir.Value, w: ir.Value | None) -> tuple[ir.Value, ir.Value]:
        """Computes begin and behind.

        Args:
            site: Where.
            x: The data.
            y: What has an element for each window.
            w: The weights, whose spatial shape is the kernel's; None for a pool.
        """
        steps = site.op("Sub", spatial_shape(site, y, self.rank), site.int64(1))
        taps = self._kernel_less_one(site, w)
        span = site.op(
            "Add",
            site.op("Add", site.op("Mul", steps, site.int64(self.stride)), site.int64(1)),
            site.op("Mul", taps, site.int64(self.dilation)),
        )
        surplus = site.op("Sub", span, spatial_shape(site, x, self.rank))
        if not self.same:
            begin = site.int64([axis.begin for axis in self.axes])
        else:
            added = site.op("Add", surplus, site.int64([axis.output_padding for axis in self.axes]))
            total = site.op("Max", added, site.int64(0))
            less = site.op("Div", total, site.int64(2))
            begin = less if self.upper else site.op("Sub", total, less)
        return begin, site.op("Sub", surplus, begin)

    def _kernel_less_one(self, site: Site, w: ir.Value | None) -> ir.Value:
        if w is not None and any(axis.kernel is None for axis in self.axes):
            return site.op("Sub", spatial_shape(site, w, self.rank), site.int64(1))
        return site.int64([(axis.kernel or 1) - 1 for axis in self.axes])


def windows_of(site: Site, x: ir.Value | None, y: ir.Value | None, kernel: Sequence[Known]) -> Windows:
    """The windows of a Conv or a pool.

    Args:
        site: A node with the op's attributes.
        x: The data; None if nobody knows it.
        y: What has an element for each window.
        kernel: The number of taps in each dimension.
    """
    rank = len(kernel)
    same, upper = _auto_pad(site)
    pads = declared_pads(site, rank)
    ceil = bool(site.attribute("ceil_mode", 0))
    axes = []
    for extent, out, taps, stride, dilation, (before, after) in zip(
        extents(x, rank),
        extents(y, rank),
        kernel,
        _ints(site, "strides", rank),
        _ints(site, "dilations", rank),
        pads,
        strict=True,
    ):
        reach = None if taps is None else (taps - 1) * dilation + 1
        begin, behind = before, None
        if same:
            number = out if extent is None else -(-extent // stride)
            surplus = _surplus(extent, number, reach, stride)
            if stride == 1 and reach is not None:
                surplus = reach - 1  # as many windows as elements, however many that is
            if surplus is None:
                begin = None
            else:
                total = max(surplus, 0)
                begin = total // 2 if upper else total - total // 2
        else:
            number = out
            if extent is not None and reach is not None:
                # Not y's: onnx infers one too many below opset 22 where ceil_mode's last window would be empty.
                number = _count(extent, reach, stride, before, after, ceil=ceil)
            surplus = before + after if stride == 1 else _surplus(extent, number, reach, stride)
        if surplus is not None and begin is not None:
            behind = surplus - begin
        at_most = after if behind is None and not same and not ceil else behind
        axes.append(Axis(extent, number, taps, stride, dilation, begin, behind, at_most))
    return Windows(tuple(axes), same, upper)


def transposed_windows_of(site: Site, x: ir.Value | None, y: ir.Value | None, kernel: Sequence[Known]) -> Windows:
    """The windows that a ConvTranspose has over its output.

    Args:
        site: A node with the op's attributes.
        x: The output.
        y: The input, which has an element for each window.
        kernel: The number of taps in each dimension.
    """
    rank = len(kernel)
    same, upper = _auto_pad(site)
    shape = list(site.attribute("output_shape", None) or [])[-rank:]
    if shape and not same:
        upper = False
    axes = []
    for i, (extent, out, taps, stride, dilation, (before, after), added) in enumerate(
        zip(
            extents(x, rank),
            extents(y, rank),
            kernel,
            _ints(site, "strides", rank),
            _ints(site, "dilations", rank),
            declared_pads(site, rank),
            _ints(site, "output_padding", rank, default=0),
            strict=True,
        )
    ):
        reach = None if taps is None else (taps - 1) * dilation + 1
        begin, behind = before, after - added
        if shape or same:
            surplus = _surplus(shape[i] if shape else extent, out, reach, stride)
            if same and not shape and reach is not None:
                surplus = max(reach + added - stride, 0) - added
            if surplus is None:
                begin = behind = None
            else:
                total = max(surplus + added, 0)
                begin = total // 2 if upper else total - total // 2
                behind = surplus - begin
        axes.append(Axis(extent, out, taps, stride, dilation, begin, behind, behind, added))
    return Windows(tuple(axes), same or bool(shape), upper)


def _product(numbers: Sequence[Known]) -> Known:
    known = [number for number in numbers if number is not None]
    return prod(known) if len(known) == len(numbers) else None


def _surplus(extent: Known, out: Known, reach: Known, stride: int) -> Known:
    """How far the span exceeds the data."""
    if extent is None or out is None or reach is None:
        return None
    return (out - 1) * stride + reach - extent


def _count(extent: int, reach: int, stride: int, before: int, after: int, *, ceil: bool) -> int:
    """The number of windows; with ceil_mode none that would begin behind the data and its padding."""
    room = extent + before + after - reach
    count = (-(-room // stride) if ceil else room // stride) + 1
    return count - 1 if ceil and (count - 1) * stride >= extent + before else count


def _auto_pad(site: Site) -> tuple[bool, bool]:
    mode = site.attribute("auto_pad", "NOTSET")
    return mode in ("SAME_UPPER", "SAME_LOWER"), mode == "SAME_UPPER"


def declared_pads(site: Site, rank: int) -> list[tuple[int, int]]:
    """The attribute pads, (begin, end) for each dimension; none where auto_pad takes its place."""
    declared = list(site.attribute("pads", None) or [0] * (2 * rank))
    if site.attribute("auto_pad", "NOTSET") not in ("NOTSET", ""):
        declared = [0] * (2 * rank)
    return list(zip(declared[:rank], declared[rank:], strict=True))


def _ints(site: Site, name: str, rank: int, default: int = 1) -> list[int]:
    return list(site.attribute(name, None) or [default] * rank)
