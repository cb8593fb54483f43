"""The windows that convolutions and pools slide over their data, as a lowering sees them.

Along one spatial dimension, kernel element k of window o meets the data at o stride + k dilation - begin. All
windows together span (out - 1) stride + (kernel - 1) dilation + 1 positions: `begin` of them before the data, and
`end` of them after it, which is negative where the last elements are in no window. Both are numbers where
attributes and static shapes determine them; otherwise `Windows.at_run_time` computes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, TypeAlias

from bngrad.passes.lower.shapes import spatial_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from bngrad.passes.lower.site import Site

Known: TypeAlias = int | None
"""A number, or None if it is known only at run time."""


@dataclass(frozen=True)
class Axis:
    """The windows along one spatial dimension."""

    size: Known
    """The size of the data."""
    out: Known
    """The number of windows."""
    kernel: Known
    """The size of the kernel."""
    stride: int
    dilation: int
    begin: Known
    end: Known
    at_most: Known
    """An upper bound of `end`, known more often."""
    output_padding: int = 0
    """The elements after the span that a ConvTranspose adds to its output, which is the data."""

    @property
    def inside(self) -> bool:
        """True if no window extends beyond the data."""
        return self.begin is not None and self.begin <= 0 and self.at_most is not None and self.at_most <= 0


@dataclass(frozen=True)
class Windows:
    """The windows of one node."""

    axes: tuple[Axis, ...]
    same: bool
    """True if auto_pad or output_shape determines the padding, False if it is declared."""
    upper: bool
    """True if, with `same`, the odd element goes after the data."""

    @property
    def fixed(self) -> bool:
        """True if all padding is known."""
        return all(axis.begin is not None and axis.end is not None for axis in self.axes)

    @property
    def rank(self) -> int:
        """The number of spatial dimensions."""
        return len(self.axes)

    @property
    def inside(self) -> bool:
        """True if no window extends beyond the data."""
        return all(axis.inside for axis in self.axes)

    @property
    def overlap(self) -> bool:
        """True if two windows may have an element in common."""
        return any(
            axis.out != 1 and (length is None or axis.stride < length)
            for axis, length in zip(self.axes, self.dilated_kernel, strict=True)
        )

    @property
    def tile(self) -> bool:
        """True if each element is in exactly one window, and the windows have no other elements."""
        return all(
            axis.begin == axis.end == 0 and axis.dilation == 1 and (axis.kernel == axis.stride or axis.out == 1)
            for axis in self.axes
        )

    @property
    def pointwise(self) -> bool:
        """True if each window is one element of the data."""
        return self.inside and all(axis.kernel == 1 for axis in self.axes)

    @property
    def dense(self) -> bool:
        """True if a window starts at every element."""
        return all(axis.stride == 1 for axis in self.axes)

    @property
    def number(self) -> Known:
        """The number of windows of one image."""
        return _product([axis.out for axis in self.axes])

    @property
    def size(self) -> Known:
        """The number of elements of one channel of an image."""
        return _product([axis.size for axis in self.axes])

    @property
    def stride(self) -> list[int]:
        """The attribute strides."""
        return [axis.stride for axis in self.axes]

    @property
    def dilation(self) -> list[int]:
        """The attribute dilations."""
        return [axis.dilation for axis in self.axes]

    @property
    def dilated_kernel(self) -> list[Known]:
        """The size of the dilated kernel."""
        return [None if axis.kernel is None else (axis.kernel - 1) * axis.dilation + 1 for axis in self.axes]

    @property
    def pads(self) -> list[int]:
        """The attribute pads that the windows need; only if the padding is fixed."""
        return [*(axis.begin or 0 for axis in self.axes), *(max(axis.end or 0, 0) for axis in self.axes)]

    @property
    def unread(self) -> list[int]:
        """The elements at the end that are in no window; only if the padding is fixed."""
        return [max(-(axis.end or 0), 0) for axis in self.axes]

    def leftover(self, steps: Sequence[int]) -> bool:
        """Returns whether an op that walks over the data in steps reads elements that are in no window."""
        return self.fixed and any(unread >= step for unread, step in zip(self.unread, steps, strict=True))

    @property
    def opposite_pads(self) -> list[int] | None:
        """With stride 1, the padding of y with which Conv over it computes all of x; None if some is negative."""
        lengths = [length for length in self.dilated_kernel if length is not None]
        if not self.fixed or len(lengths) < self.rank:
            return None
        begin = [r - 1 - (axis.begin or 0) for r, axis in zip(lengths, self.axes, strict=True)]
        end = [r - 1 - (axis.end or 0) for r, axis in zip(lengths, self.axes, strict=True)]
        return [*begin, *end] if min(*begin, *end) >= 0 else None

    def at_run_time(self, site: Site, x: ir.Value, y: ir.Value, w: ir.Value | None) -> tuple[ir.Value, ir.Value]:
        """Computes begin and end.

        Args:
            site: The node that is lowered.
            x: The data.
            y: The tensor with an element for each window.
            w: The weights, whose spatial shape is the kernel's; None for a pool.
        """
        steps = site.op("Sub", spatial_shape(site, y, self.rank), site.int64(1))
        less_one = self._kernel_less_one(site, w)
        span = site.op(
            "Add",
            site.op("Add", site.op("Mul", steps, site.int64(self.stride)), site.int64(1)),
            site.op("Mul", less_one, site.int64(self.dilation)),
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


def _product(numbers: Sequence[Known]) -> Known:
    factors = [number for number in numbers if number is not None]
    return prod(factors) if len(factors) == len(numbers) else None
