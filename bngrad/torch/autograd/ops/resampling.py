"""Pad, CenterCropPad, AffineGrid and GridSample."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from bngrad.torch.autograd.table import UnsupportedFormError, numbers, op

if TYPE_CHECKING:
    from collections.abc import Sequence


@op("Pad", since=11)
def pad(
    x: Tensor, pads: Tensor, value: Tensor | None = None, axes: Tensor | None = None, *, mode: str = "constant"
) -> Tensor:
    """X with more or fewer elements at the ends of its axes."""
    amounts = numbers(pads)
    along = list(range(x.ndim)) if axes is None else [axis % x.ndim for axis in numbers(axes)]
    ends = {axis: (amounts[place], amounts[place + len(along)]) for place, axis in enumerate(along)}
    if mode == "constant":
        flat = list(chain.from_iterable(ends.get(axis, (0, 0)) for axis in reversed(range(x.ndim))))
        if value is None:
            return functional.pad(x, flat)
        inside = functional.pad(torch.ones_like(x, dtype=torch.bool), flat)
        return torch.where(inside, functional.pad(x, flat), value.reshape(()))
    for axis, (begin, end) in ends.items():
        size = x.shape[axis]
        kept = np.arange(size)[max(-begin, 0) : size - max(-end, 0)]
        which = np.pad(kept, (max(begin, 0), max(end, 0)), mode=mode)  # type: ignore[call-overload]
        x = x.index_select(axis, torch.from_numpy(which))
    return x


@op("CenterCropPad")
def center_crop_pad(x: Tensor, shape: Tensor, *, axes: Sequence[int] | None = None) -> Tensor:
    """The middle of x along some axes, or x in the middle of zeros."""
    for axis, size in zip(range(x.ndim) if axes is None else axes, numbers(shape), strict=True):
        more = size - x.shape[axis]
        if more < 0:
            x = x.narrow(axis, -more // 2, size)
        else:
            flat = [0] * (2 * (x.ndim - 1 - axis % x.ndim)) + [more // 2, more - more // 2]
            x = functional.pad(x, flat)
    return x


@op("AffineGrid")
def affine_grid(theta: Tensor, size: Tensor, *, align_corners: int = 0) -> Tensor:
    """The places that affine maps give those of an image."""
    return functional.affine_grid(theta, numbers(size), bool(align_corners))


@op("GridSample")
def grid_sample(
    x: Tensor,
    grid: Tensor,
    *,
    align_corners: int = 0,
    mode: str = "linear",
    padding_mode: str = "zeros",
) -> Tensor:
    """X at the points of a grid."""
    modes = {"linear": "bilinear", "cubic": "bicubic"}
    if x.ndim not in (4, 5) or (x.ndim == 5 and modes.get(mode, mode) == "bicubic"):
        raise UnsupportedFormError(f"it has mode {mode} in {x.ndim - 2} spatial dimensions, which PyTorch lacks")
    return functional.grid_sample(x, grid, modes.get(mode, mode), padding_mode, bool(align_corners))
