"""The windows of convolutions and pools: pads of every kind become explicit ones, which PyTorch's pad makes."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


class Window(NamedTuple):
    """The windows along one axis."""

    size: int
    """The elements of a window."""
    stride: int
    dilation: int
    begin: int
    """The padding in front."""
    end: int
    """The padding behind."""
    excess: int
    """What the last window needs behind that, where ceil_mode rounds up."""


def windows(
    sizes: Sequence[int],
    kernel: Sequence[int],
    *,
    auto_pad: str,
    ceil_mode: int = 0,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
) -> list[Window]:
    """Returns the windows along each spatial axis, for the attributes of ONNX."""
    rank = len(sizes)
    found = []
    for axis, (n, k) in enumerate(zip(sizes, kernel, strict=True)):
        stride, dilation = (strides or [1] * rank)[axis], (dilations or [1] * rank)[axis]
        span, excess = (k - 1) * dilation + 1, 0
        if auto_pad.startswith("SAME"):
            padding = max((-(-n // stride) - 1) * stride + span - n, 0)
            begin = padding // 2 if auto_pad == "SAME_UPPER" else padding - padding // 2
            end = padding - begin
        elif auto_pad == "VALID" or not pads:
            begin = end = 0
        else:
            begin, end = pads[axis], pads[axis + rank]
        if ceil_mode and not auto_pad.startswith("SAME"):
            start = -(-(n + begin + end - span) // stride) * stride  # of the last window
            start -= stride if start >= n + begin else 0
            excess = max(start + span - (n + begin + end), 0)
        found.append(Window(k, stride, dilation, begin, end, excess))
    return found


def padded(x: torch.Tensor, along: Sequence[Window], value: float, *, excess: bool = False) -> torch.Tensor:
    """Returns [N, C, ...] with the padding of the windows, and with what the last ones need behind that."""
    pads = [(one.begin, one.end + (one.excess if excess else 0)) for one in reversed(along)]
    return functional.pad(x, list(chain.from_iterable(pads)), value=value)


def unfolded(x: torch.Tensor, along: Sequence[Window]) -> torch.Tensor:
    """Returns the elements of each window of a padded tensor, [N, C, *windows, *elements]."""
    for axis, one in enumerate(along):
        span = (one.size - 1) * one.dilation + 1
        x = x.unfold(2 + axis, span, one.stride)[..., :: one.dilation]
    return x
