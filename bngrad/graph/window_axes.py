"""The windows of convolutions and pools along each spatial dimension, in numbers, as ONNX defines them.

Kernel element k of window o is at position o * stride + k * dilation - begin of the data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class WindowAxis(NamedTuple):
    """The windows along one spatial dimension."""

    size: int
    """The elements of the data."""
    kernel: int
    """The elements of a window."""
    stride: int
    dilation: int
    begin: int
    """Padding before the first element, from pads or auto_pad."""
    end: int
    """Padding after the last element."""
    out: int
    """The number of windows."""

    @property
    def length(self) -> int:
        """The size of the dilated kernel."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def excess(self) -> int:
        """The positions that the last window needs after the padding, where ceil_mode rounds up."""
        needed = (self.out - 1) * self.stride + self.length
        return max(needed - self.size - self.begin - self.end, 0)


def window_axes(
    sizes: Sequence[int],
    kernel: Sequence[int],
    *,
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    auto_pad: str | None = None,
    ceil_mode: int | None = None,
) -> list[WindowAxis]:
    """Returns the windows for the attributes of Conv or a pool; None or empty if absent.

    Args:
        sizes: The spatial dimensions of the data.
        kernel: The spatial dimensions of the kernel.
        strides: The step between windows in each dimension; 1 by default.
        pads: The padding at the start of each dimension, then at the end; 0 by default.
        dilations: The step between kernel elements in each dimension; 1 by default.
        auto_pad: SAME_UPPER, SAME_LOWER, VALID, or NOTSET.
        ceil_mode: Whether a last window may extend beyond the padding.
    """
    rank = len(sizes)
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    declared = (pads if auto_pad in (None, "", "NOTSET") else None) or [0] * (2 * rank)
    axes = []
    for axis, (size, elements, stride, dilation) in enumerate(zip(sizes, kernel, strides, dilations, strict=True)):
        length = (elements - 1) * dilation + 1
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            out = -(-size // stride)
            begin, end = same_padding(size, length, stride, upper=auto_pad == "SAME_UPPER")
        else:
            begin, end = declared[axis], declared[axis + rank]
            out = window_count(size, length, stride, begin, end, ceil=bool(ceil_mode))
        axes.append(WindowAxis(size, elements, stride, dilation, begin, end, out))
    return axes


def window_count(size: int, length: int, stride: int, begin: int, end: int, *, ceil: bool) -> int:
    """Returns the number of windows of a dilated kernel; with ceil_mode without one that begins after the data.

    ONNX below opset 22 counts a window that begins after the data and the padding before it.
    """
    room = size + begin + end - length
    count = (-(-room // stride) if ceil else room // stride) + 1
    return count - 1 if ceil and (count - 1) * stride >= size + begin else count


def same_padding(size: int, length: int, stride: int, *, upper: bool) -> tuple[int, int]:
    """Returns the padding, at the start and the end, that gives a window for each stride of the data."""
    return split_padding((-(-size // stride) - 1) * stride + length - size, upper=upper)


def split_padding(total: int, *, upper: bool) -> tuple[int, int]:
    """Splits the padding of a dimension into a start and an end; a negative total counts as 0.

    Args:
        total: The sum of both.
        upper: Whether the odd element goes to the end.
    """
    less = max(total, 0) // 2
    more = max(total, 0) - less
    return (less, more) if upper else (more, less)
