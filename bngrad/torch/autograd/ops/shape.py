"""Ops that move elements, and those that compute with shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bngrad.torch.autograd.table import numbers, op

if TYPE_CHECKING:
    from collections.abc import Sequence


@op("Shape")
def shape(x: Tensor, *, start: int = 0, end: int | None = None) -> Tensor:
    """The sizes of x, or some of them."""
    return torch.tensor(list(x.shape)[start:end], dtype=torch.int64)


@op("Size")
def size(x: Tensor) -> Tensor:
    """The number of elements."""
    return torch.tensor(x.numel(), dtype=torch.int64)


@op("Identity")
def identity(x: Tensor) -> Tensor:
    """X."""
    return x


@op("Flatten")
def flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    """A matrix with a row for each index of the axes before ``axis``."""
    first = axis + x.ndim if axis < 0 else axis
    return x.reshape(x.shape[:first].numel(), x.shape[first:].numel())


@op("Reshape", since=5)
def reshape(x: Tensor, new_shape: Tensor, *, allowzero: int = 0) -> Tensor:
    """X with other sizes, where 0 is that of x unless it is allowed, and -1 follows from the others."""
    sizes = numbers(new_shape)
    if not allowzero:
        sizes = [x.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)]
    return x.reshape(sizes)


@op("Squeeze")
def squeeze(x: Tensor, axes_input: Tensor | None = None, *, axes: Sequence[int] | None = None) -> Tensor:
    """X without some axes of size 1, by default all."""
    dims = axes if axes_input is None else numbers(axes_input)
    return x.squeeze() if dims is None else x.squeeze(tuple(dims))


@op("Unsqueeze")
def unsqueeze(x: Tensor, axes_input: Tensor | None = None, *, axes: Sequence[int] | None = None) -> Tensor:
    """X with further axes of size 1, at these places of the result."""
    dims = list(axes or []) if axes_input is None else numbers(axes_input)
    rank = x.ndim + len(dims)
    for axis in sorted(axis % rank for axis in dims):
        x = x.unsqueeze(axis)
    return x


@op("Transpose")
def transpose(x: Tensor, *, perm: Sequence[int] | None = None) -> Tensor:
    """X with its axes in another order, by default the reverse."""
    return x.permute(list(reversed(range(x.ndim))) if perm is None else list(perm))


@op("Expand")
def expand(x: Tensor, new_shape: Tensor) -> Tensor:
    """X broadcast with a shape."""
    return torch.broadcast_to(x, torch.broadcast_shapes(x.shape, tuple(numbers(new_shape))))


@op("Tile", since=6)
def tile(x: Tensor, repeats: Tensor) -> Tensor:
    """X repeated along each axis."""
    return x.repeat(numbers(repeats))


@op("Concat", since=4)
def concat(*parts: Tensor, axis: int) -> Tensor:
    """All inputs, one after the other."""
    return torch.cat(parts, axis)


@op("Split")
def split(
    x: Tensor,
    sizes: Tensor | None = None,
    *,
    axis: int = 0,
    num_outputs: int | None = None,
    outputs: int,
    split: Sequence[int] | None = None,
) -> tuple[Tensor, ...]:
    """Parts of x, of given sizes or of one size, of which the last may be smaller."""
    lengths = split if sizes is None else numbers(sizes)
    if lengths is None:
        count = num_outputs or outputs
        length = -(-x.shape[axis] // count)
        lengths = [max(0, min(length, x.shape[axis] - length * index)) for index in range(count)]
    return tuple(torch.split(x, list(lengths), axis))


@op("DepthToSpace")
def depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """Blocks of channels as squares of pixels."""
    n, c, h, w = x.shape
    b, depth = blocksize, c // blocksize**2
    if mode == "DCR":
        parts = x.reshape(n, b, b, depth, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        parts = x.reshape(n, depth, b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return parts.reshape(n, depth, h * b, w * b)


@op("SpaceToDepth")
def space_to_depth(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """Squares of pixels as blocks of channels."""
    n, c, h, w = x.shape
    b = blocksize
    parts = x.reshape(n, c, h // b, b, w // b, b)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return parts.permute(order).reshape(n, c * b * b, h // b, w // b)
