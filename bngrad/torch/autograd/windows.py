"""The windows of convolutions and pools in PyTorch: their padding, and their elements."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from bngrad.graph.window_axes import WindowAxis


def padded(x: torch.Tensor, along: Sequence[WindowAxis], value: float, *, excess: bool = False) -> torch.Tensor:
    """Returns [N, C, ...] with the padding of the windows, and with ``excess`` the elements that follow it."""
    pads = [(axis.begin, axis.end + (axis.excess if excess else 0)) for axis in reversed(along)]
    return functional.pad(x, list(chain.from_iterable(pads)), value=value)


def unfolded(x: torch.Tensor, along: Sequence[WindowAxis]) -> torch.Tensor:
    """Returns the elements of each window of a padded tensor, [N, C, *windows, *elements]."""
    for index, axis in enumerate(along):
        x = x.unfold(2 + index, axis.length, axis.stride)[..., :: axis.dilation]
    return x
