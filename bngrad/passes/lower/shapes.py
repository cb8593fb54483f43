"""Shapes of values [N, C, *spatial], as numbers or at run time."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.passes.lower.site import Site


def spatial_sizes(value: ir.Value | None, rank: int) -> tuple[int | None, ...]:
    """The spatial dimensions as far as they are known."""
    if value is None or value.shape is None:
        return (None,) * rank
    return tuple(size if isinstance(size, int) else None for size in value.shape)[2:]


def spatial(site: Site, value: ir.Value, rank: int) -> list[int] | ir.Value:
    """The spatial dimensions, as numbers if all are known."""
    sizes = [size for size in spatial_sizes(value, rank) if size is not None]
    return sizes if len(sizes) == rank else site.op("Shape", value, start=2)


def number(site: Site, value: ir.Value, rank: int) -> int | ir.Value:
    """The number of elements of one channel of an image: an int if it is known, else a vector of one element."""
    sizes = [size for size in spatial_sizes(value, rank) if size is not None]
    return (
        prod(sizes) if len(sizes) == rank else site.op("ReduceProd", site.op("Shape", value, start=2), keepdims=1)
    )


def spatial_shape(site: Site, value: ir.Value, rank: int) -> ir.Value:
    """The spatial dimensions, as a constant if all are known."""
    result = spatial(site, value, rank)
    return result if isinstance(result, ir.Value) else site.int64(result)


def by_channel(site: Site, value: ir.Value, rank: int) -> ir.Value:
    """[N, C, *spatial] -> [C, N * spatial]."""
    return reshape(site, site.op("Transpose", value, perm=[1, 0, *range(2, 2 + rank)]), 0, -1)


def reshape(site: Site, value: ir.Value, *parts: int | Sequence[int] | ir.Value) -> ir.Value:
    """Reshapes to parts that follow each other.

    Args:
        site: The node that is lowered.
        value: The value.
        parts: Each numbers as Reshape takes them (0 for a dimension that stays, -1 for the rest), or a computed
            part of a shape. -1 requires that no other dimension is 0: not beside the batch, which may be.
    """
    pieces: list[ir.Value | list[int]] = []
    for part in parts:
        if isinstance(part, ir.Value):
            pieces.append(part)
        else:
            numbers = [part] if isinstance(part, int) else list(part)
            if pieces and isinstance(pieces[-1], list):
                pieces[-1] += numbers
            else:
                pieces.append(numbers)
    values = [site.int64(piece) if isinstance(piece, list) else piece for piece in pieces]
    return site.op("Reshape", value, values[0] if len(values) == 1 else site.op("Concat", *values, axis=0))


def by_image(site: Site, value: ir.Value, *parts: int | Sequence[int] | ir.Value) -> ir.Value:
    """Reshapes [N, ...] to N and the parts, where N may be 0.

    N is computed where another part is: ONNX Runtime writes -1 for the only unknown part of a shape.
    """
    if any(isinstance(part, ir.Value) for part in parts):
        return reshape(site, value, site.op("Shape", value, end=1), *parts)
    return reshape(site, value, 0, *parts)
