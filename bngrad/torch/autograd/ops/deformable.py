"""DeformConv, which PyTorch has in another package."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bngrad.torch.autograd.table import op

if TYPE_CHECKING:
    from collections.abc import Sequence


@op("DeformConv", since=19)
def deform_conv(
    x: Tensor,
    w: Tensor,
    offset: Tensor,
    b: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,  # noqa: ARG001 - that of w
    offset_group: int = 1,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """The convolution of samples of x at the places of a convolution plus the offset, times the mask."""
    (batch, channels, *sizes), (outputs, inputs, *kernel), out = x.shape, w.shape, offset.shape[2:]
    rank, count, groups = len(sizes), prod(kernel), batch * offset_group
    strides, dilations, pads = strides or [1] * rank, dilations or [1] * rank, pads or [0] * (2 * rank)
    offset = offset.reshape(groups, count, rank, *out)
    places = []
    for axis in range(rank):
        along = [1] * (1 + rank)
        along[1 + axis] = out[axis]
        base = torch.arange(out[axis], device=x.device).reshape(along) * strides[axis] - pads[axis]
        elements = torch.cartesian_prod(*(torch.arange(size, device=x.device) for size in kernel))
        within = elements.reshape(count, rank)[:, axis].reshape(count, *[1] * rank) * dilations[axis]
        places.append((offset[:, :, axis] + base + within).flatten(1))
    samples = _sampled(x.reshape(groups, channels // offset_group, *sizes), places)
    if mask is not None:
        samples = samples * mask.reshape(groups, 1, -1)
    columns = samples.reshape(batch, group, inputs * count, prod(out))
    y = w.reshape(group, outputs // group, inputs * count) @ columns
    y = y.reshape(batch, outputs, *out)
    return y if b is None else y + b.reshape(-1, *[1] * rank)


def _sampled(x: Tensor, places: Sequence[Tensor]) -> Tensor:
    """Returns x at places by linear interpolation, with zeros around it: [groups, channels, places]."""
    total, flat = x.new_zeros(()), x.flatten(2)
    for corner in product((0, 1), repeat=len(places)):
        weight, index = torch.ones_like(places[0]), torch.zeros_like(places[0], dtype=torch.int64)
        for place, size, upper in zip(places, x.shape[2:], corner, strict=True):
            low = place.detach().floor()
            element = low + upper
            inside = (element >= 0) & (element < size)
            weight = weight * (place - low if upper else 1 - (place - low)) * inside
            index = index * size + element.clamp(0, size - 1).long()
        elements = flat.gather(2, index.unsqueeze(1).expand(-1, x.shape[1], -1))
        total = total + weight.unsqueeze(1) * elements
    return total
