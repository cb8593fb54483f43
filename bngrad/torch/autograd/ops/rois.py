"""RoiAlign and MaxRoiPool, which PyTorch has in another package."""

from __future__ import annotations

from math import ceil, floor
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bngrad.torch.autograd.table import float32, op

if TYPE_CHECKING:
    from collections.abc import Sequence


@op("RoiAlign", since=16)
def roi_align(
    x: Tensor,
    rois: Tensor,
    images: Tensor,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Tensor:
    """The average, or the largest product with its weight, of samples in each bin of each region."""
    offset = 0.5 if coordinate_transformation_mode == "half_pixel" else 0.0
    results = []
    for (left, top, right, bottom), image in zip(rois * spatial_scale - offset, images, strict=True):
        taps = []
        for begin, end, bins, length in (
            (top, bottom, output_height, x.shape[2]),
            (left, right, output_width, x.shape[3]),
        ):
            size = end - begin if offset else (end - begin).clamp(min=1)
            count = sampling_ratio or max(int(torch.ceil(size / bins).item()), 0)
            within = (torch.arange(count).to(x) + 0.5) / max(count, 1)
            place = begin + (torch.arange(bins).to(x)[:, None] + within) * (size / bins)
            inside = (place >= -1) & (place <= length)
            place = place.clamp(0, length - 1)
            low = place.floor()
            index = torch.stack([low, (low + 1).clamp(max=length - 1)], -1).long()
            weight = torch.stack([1 - (place - low), place - low], -1) * inside[..., None]
            taps.append((index.flatten(1), weight.flatten(1), max(count, 1)))
        (row, by_row, rows), (column, by_column, columns) = taps
        samples = x[image][:, row[:, None, :, None], column[None, :, None, :]]
        products = (samples * by_row[:, None, :, None] * by_column[None, :, None, :]).flatten(3)
        is_largest = mode == "max" and products.shape[-1] > 0
        results.append(products.amax(-1) if is_largest else products.sum(-1) / (rows * columns))
    return torch.stack(results) if results else x.new_zeros(0, x.shape[1], output_height, output_width)


@op("MaxRoiPool")
def max_roi_pool(x: Tensor, rois: Tensor, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0) -> Tensor:
    """The largest element of each bin of each region, 0 for an empty bin; halves are rounded away from 0."""
    results = []
    for image, *edges in rois:
        scaled = torch.stack(edges) * float32(spatial_scale)
        left, top, right, bottom = (scaled.sign() * (scaled.abs() + 0.5).floor()).long().tolist()
        rows = _bins(top, bottom, pooled_shape[0], x.shape[2])
        columns = _bins(left, right, pooled_shape[1], x.shape[3])
        bins = [x[int(image), :, row, column].flatten(1) for row in rows for column in columns]
        # max(dim) gives the gradient to the first largest element, and amax shares it.
        largest = [part.max(1).values if part.shape[1] else x.new_zeros(x.shape[1]) for part in bins]
        results.append(torch.stack(largest, 1).reshape(-1, *pooled_shape))
    return torch.stack(results) if results else x.new_zeros(0, x.shape[1], *pooled_shape)


def _bins(start: int, end: int, count: int, length: int) -> list[slice]:
    """The elements of each bin along an axis."""
    size = max(end - start + 1, 1) / count
    edges = [(start + floor(number * size), start + ceil((number + 1) * size)) for number in range(count)]
    return [slice(*(min(max(edge, 0), length) for edge in pair)) for pair in edges]
