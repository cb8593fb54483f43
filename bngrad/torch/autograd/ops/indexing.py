"""Ops that read or write elements by index."""

from __future__ import annotations

import torch
from torch import Tensor

from bngrad.torch.autograd.table import numbers, op

_REDUCE = {"mul": "prod", "max": "amax", "min": "amin"}


def _counted(indices: Tensor, size: int) -> Tensor:
    """Indices from the front."""
    indices = indices.long()
    return torch.where(indices < 0, indices + size, indices)


@op("Slice", since=10)
def slice_(
    x: Tensor, starts: Tensor, ends: Tensor, axes: Tensor | None = None, steps: Tensor | None = None
) -> Tensor:
    """The elements from start to end along some axes."""
    along = list(range(starts.numel())) if axes is None else numbers(axes)
    strides = [1] * len(along) if steps is None else numbers(steps)
    for axis, start, end, step in zip(along, numbers(starts), numbers(ends), strides, strict=True):
        kept = range(*slice(start, end, step).indices(x.shape[axis]))
        x = x.index_select(axis, torch.tensor(list(kept), dtype=torch.int64))
    return x


@op("Gather")
def gather(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    """The slices of x at indices along an axis."""
    axis %= x.ndim
    flat = x.index_select(axis, _counted(indices, x.shape[axis]).flatten())
    return flat.reshape([*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]])


@op("GatherElements")
def gather_elements(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    """The elements of x at indices along an axis."""
    return torch.gather(x, axis, _counted(indices, x.shape[axis]))


@op("GatherND")
def gather_nd(x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    """The slices of x at tuples of indices, after the batch dimensions."""
    if not batch_dims:
        return x[_places(x, indices)]
    batches = x.shape[:batch_dims]
    flat, which = x.flatten(0, batch_dims - 1), indices.flatten(0, batch_dims - 1)
    parts = [sample[_places(sample, index)] for sample, index in zip(flat, which, strict=True)]
    return torch.stack(parts).reshape([*batches, *parts[0].shape])


def _places(x: Tensor, indices: Tensor) -> tuple[Tensor, ...]:
    return tuple(_counted(index, x.shape[axis]) for axis, index in enumerate(indices.unbind(-1)))


@op("ScatterElements")
def scatter_elements(
    x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none"
) -> Tensor:
    """X with updates at indices along an axis."""
    where = _counted(indices, x.shape[axis])
    if reduction == "none":
        return x.scatter(axis, where, updates)
    if reduction == "add":
        return x.scatter_add(axis, where, updates)
    return x.scatter_reduce(axis, where, updates, _REDUCE[reduction])


@op("ScatterND")
def scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    """X with updates at tuples of indices."""
    places = _places(x, indices)
    if reduction in ("none", "add"):
        return x.index_put(places, updates, accumulate=reduction == "add")
    depth = indices.shape[-1]
    rows = x.reshape(-1, x.shape[depth:].numel())
    row = torch.zeros_like(places[0])
    for axis, place in enumerate(places):
        row = row * x.shape[axis] + place
    where = row.reshape(-1, 1).expand(-1, rows.shape[1])
    return rows.scatter_reduce(0, where, updates.reshape(where.shape), _REDUCE[reduction]).reshape(x.shape)


@op("TensorScatter")
def tensor_scatter(
    x: Tensor, update: Tensor, begin: Tensor | None = None, *, axis: int = -2, mode: str = "linear"
) -> Tensor:
    """X with updates from an index of each sample on."""
    axis %= x.ndim
    first = torch.zeros(x.shape[0], dtype=torch.int64) if begin is None else begin
    where = first[:, None] + torch.arange(update.shape[axis])
    if mode == "circular":
        where = where % x.shape[axis]
    shape = [size if dim in (0, axis) else 1 for dim, size in enumerate(update.shape)]
    return x.scatter(axis, where.reshape(shape).expand(update.shape), update)


@op("Trilu")
def trilu(x: Tensor, k: Tensor | None = None, *, upper: int = 1) -> Tensor:
    """The triangle above or below a diagonal."""
    diagonal = 0 if k is None else int(k.item())
    return torch.triu(x, diagonal) if upper else torch.tril(x, diagonal)


@op("ReverseSequence")
def reverse_sequence(x: Tensor, lengths: Tensor, *, batch_axis: int = 1, time_axis: int = 0) -> Tensor:
    """The first elements of each sequence in reverse order."""
    data = x.movedim((batch_axis, time_axis), (0, 1))
    parts = [
        torch.cat([row[:length].flip(0), row[length:]]) for row, length in zip(data, numbers(lengths), strict=True)
    ]
    return torch.stack(parts).movedim((0, 1), (batch_axis, time_axis))


@op("OneHot", since=9)
def one_hot(indices: Tensor, depth: Tensor, values: Tensor, *, axis: int = -1) -> Tensor:
    """values[1] at the indices along a new axis, else values[0]."""
    count = int(depth.item())
    place = axis % (indices.ndim + 1)
    which = torch.arange(count).reshape(-1, *[1] * (indices.ndim - place))
    counted = torch.where(indices < 0, indices + count, indices)
    return torch.where(counted.unsqueeze(place) == which, values[1], values[0])


@op("TopK", since=10)
def top_k(
    x: Tensor,
    k: Tensor,
    *,
    axis: int = -1,
    largest: int = 1,
    sorted: int = 1,  # noqa: A002, ARG001 - of ONNX
) -> tuple[Tensor, Tensor]:
    """The largest or smallest elements along an axis, and their places."""
    values, places = torch.sort(x, dim=axis, descending=bool(largest), stable=True)
    count = int(k.item())
    return values.narrow(axis, 0, count), places.narrow(axis, 0, count)


@op("Compress", since=9)
def compress(x: Tensor, condition: Tensor, *, axis: int | None = None) -> Tensor:
    """The slices along an axis, or the elements, where a condition is true."""
    data = x.flatten() if axis is None else x
    return data.index_select(axis or 0, torch.nonzero(condition).flatten())


@op("Unique", since=11)
def unique(
    x: Tensor,
    *,
    axis: int | None = None,
    sorted: int = 1,  # noqa: A002 - of ONNX
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The first of equal slices along an axis, or of equal elements, and where they are."""
    data = x.flatten() if axis is None else x
    axis = axis or 0
    _, inverse, counts = torch.unique(data.detach(), dim=axis, return_inverse=True, return_counts=True)
    numbers = torch.arange(inverse.numel())
    first = torch.full_like(counts, inverse.numel()).scatter_reduce(0, inverse, numbers, "amin")
    order = torch.arange(counts.numel()) if sorted else torch.argsort(first)
    first = first[order]
    return data.index_select(axis, first), first, torch.argsort(order)[inverse], counts[order]


@op("Range", since=11)
def range_(start: Tensor, limit: Tensor, delta: Tensor, *, stash_type: int = 1) -> Tensor:  # noqa: ARG001
    """start, start + delta and so on, before the limit."""
    count = max(int(torch.ceil((limit.double() - start.double()) / delta.double()).item()), 0)
    return start + torch.arange(count).to(start.dtype) * delta
