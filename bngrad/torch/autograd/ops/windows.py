"""Sums over windows other than averages, and ops that put elements into an image."""

from __future__ import annotations

from itertools import chain
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from bngrad.graph.window_axes import window_axes
from bngrad.torch.autograd.table import numbers, op
from bngrad.torch.autograd.windows import padded, unfolded

if TYPE_CHECKING:
    from collections.abc import Sequence


@op("LpPool", since=11)
def lp_pool(
    x: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int] = (),
    p: int = 2,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """The p-norm of each window."""
    along = window_axes(
        x.shape[2:],
        kernel_shape,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        dilations=dilations,
        pads=pads,
        strides=strides,
    )
    elements = unfolded(padded(x, along, 0.0, excess=True), along)
    return torch.linalg.vector_norm(elements, p, tuple(range(-len(along), 0)))


@op("GlobalLpPool", since=2)
def global_lp_pool(x: Tensor, *, p: int = 2) -> Tensor:
    """The p-norm over the spatial axes."""
    return torch.linalg.vector_norm(x, p, tuple(range(2, x.ndim)), keepdim=True)


@op("MaxUnpool")
def max_unpool(
    x: Tensor,
    indices: Tensor,
    shape: Tensor | None = None,
    *,
    kernel_shape: Sequence[int] = (),
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """Zeros with the elements of x at their indices, the last of several at one; a larger shape has more zeros."""
    rank = len(kernel_shape)
    pads, strides = pads or [0] * (2 * rank), strides or [1] * rank
    natural = [(x.shape[2 + i] - 1) * strides[i] + kernel_shape[i] - pads[i] - pads[i + rank] for i in range(rank)]
    count = torch.arange(1, x.numel() + 1, device=x.device)
    last = torch.zeros(x.shape[:2].numel() * prod(natural), dtype=torch.int64, device=x.device)
    last = last.scatter_reduce(0, indices.flatten(), count, "amax")
    y = torch.cat([x.new_zeros(1), x.flatten()])[last].reshape(*x.shape[:2], *natural)
    if shape is None:
        return y
    more = [(0, size - own) for size, own in zip(numbers(shape)[2:], natural, strict=True)]
    return functional.pad(y, list(chain.from_iterable(reversed(more))))


@op("Col2Im")
def col2im(
    x: Tensor,
    image: Tensor,
    block: Tensor,
    *,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """Sums of the blocks at their places."""
    sizes, kernel = numbers(image), numbers(block)
    along = window_axes(sizes, kernel, dilations=dilations, pads=pads, strides=strides)
    places, whole = torch.zeros([1] * (2 * len(along)), dtype=torch.int64, device=x.device), []
    for i, axis in enumerate(along):
        elements = torch.arange(axis.kernel, device=x.device) * axis.dilation
        own = elements[:, None] + torch.arange(axis.out, device=x.device) * axis.stride
        whole.append(axis.size + axis.begin + axis.end)
        shape = [1] * (2 * len(along))
        shape[i], shape[i + len(along)] = axis.kernel, axis.out
        places = places * whole[-1] + own.reshape(shape)
    columns = x.reshape(x.shape[0], x.shape[1] // prod(kernel), places.numel())
    y = columns.new_zeros(*columns.shape[:2], prod(whole)).index_add(2, places.flatten(), columns)
    y = y.reshape(*columns.shape[:2], *whole)
    for i, axis in enumerate(along):
        y = y.narrow(2 + i, axis.begin, axis.size)
    return y
