"""Pools over windows, of any number of spatial dimensions."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from bngrad.graph.window_axes import window_axes
from bngrad.torch.autograd.table import UnsupportedFormError, op
from bngrad.torch.autograd.windows import padded, unfolded

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_POOL = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}


@op("MaxPool")
def max_pool(
    x: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] = (),
    pads: Sequence[int] | None = None,
    storage_order: int = 0,  # noqa: ARG001 - of the indices
    strides: Sequence[int] | None = None,
) -> Tensor:
    """The largest element of each window."""
    if not x.is_floating_point():
        raise UnsupportedFormError("it is not of floats")
    along = window_axes(
        x.shape[2:],
        kernel_shape,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        dilations=dilations,
        pads=pads,
        strides=strides,
    )
    rank = len(along)
    whole = padded(x, along, -inf, excess=True)
    if rank not in _MAX_POOL:
        return torch.amax(unfolded(whole, along), tuple(range(-rank, 0)))
    stride, dilation = [axis.stride for axis in along], [axis.dilation for axis in along]
    return _MAX_POOL[rank](whole, list(kernel_shape), stride, 0, dilation)


@op("AveragePool")
def average_pool(
    x: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] = (),
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """The sum of each window over the number of its elements, with count_include_pad also of the padding."""
    along = window_axes(
        x.shape[2:],
        kernel_shape,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        dilations=dilations,
        pads=pads,
        strides=strides,
    )
    elements = tuple(range(-len(along), 0))
    sums = unfolded(padded(x, along, 0.0, excess=True), along).sum(elements)
    counted = padded(torch.ones_like(x[:1, :1]), along, float(count_include_pad))
    excess = [axis._replace(begin=0, end=axis.excess) for axis in along]
    return sums / unfolded(padded(counted, excess, 0.0), along).sum(elements)
