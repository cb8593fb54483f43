"""Layouts of values in tensors: each dimension consists of some axes of the batch norm, in order.

A layout is a tuple of dimensions, and a dimension is a tuple of axes; one without axes has size 1. With axes 0 to
3 for N, C, H and W, data in NCHW is ((0,), (1,), (2,), (3,)), in NHWC ((0,), (2,), (3,), (1,)), as a matrix
((0, 2, 3), (1,)), and a parameter is ((1,),) or ((), (1,), (), ()).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

    from spellings.expressions import Space

    Layout = tuple[tuple[int, ...], ...]


def order(layout: Layout) -> tuple[int, ...]:
    """The axes of all dimensions in turn."""
    return tuple(axis for dimension in layout for axis in dimension)


def singles(layout: Layout) -> Layout:
    """A layout with a dimension for each axis."""
    return tuple((axis,) for axis in order(layout))


def fits(layout: Layout, axes: frozenset[int]) -> bool:
    """Returns whether each dimension has only these axes or none of them."""
    return all(not dimension or set(dimension) <= axes or not set(dimension) & axes for dimension in layout)


def part(layout: Layout, axes: frozenset[int]) -> Layout:
    """The layout in which a value along fewer axes can be broadcast to a layout that `fits`."""
    return tuple(dimension if set(dimension) <= axes else () for dimension in layout)


def stripped(layout: Layout) -> Layout:
    """A layout without leading dimensions of no axes, which broadcasting does not need."""
    start = next((i for i, dimension in enumerate(layout) if dimension), len(layout))
    return layout[start:]


def draw_view(space: Space, rng: random.Random) -> Layout:
    """A layout of data: NCHW, another order, or with neighbouring axes of one kind flattened."""
    axes = sorted(space.all)
    kept = sorted(space.kept)
    reduced = sorted(space.reduced)
    form = rng.random()
    if form < 0.45:
        chosen = axes
    elif form < 0.65:
        chosen = reduced + kept
    elif form < 0.8:
        chosen = [0, *kept, *[axis for axis in reduced if axis]]
    else:
        chosen = rng.sample(axes, len(axes))
    layout = tuple((axis,) for axis in chosen)
    return flattened(layout, space, rng) if rng.random() < 0.4 else layout


def flattened(layout: Layout, space: Space, rng: random.Random) -> Layout:
    """A layout with neighbours of one kind, both reduced or both kept, joined at random."""
    joined: list[tuple[int, ...]] = []
    for dimension in layout:
        same = (
            joined and dimension and joined[-1] and (dimension[0] in space.kept) == (joined[-1][0] in space.kept)
        )
        if same and rng.random() < 0.8:
            joined[-1] = (*joined[-1], *dimension)
        else:
            joined.append(dimension)
    return tuple(joined)


def draw_for(axes: Iterable[int], view: Layout, rng: random.Random) -> Layout:
    """A layout of a value along some axes: with the unit dimensions of a reduction, without them, or with some."""
    axes = frozenset(axes)
    if not fits(view, axes):
        view = singles(view)
    whole = part(view, axes)
    form = rng.random()
    if form < 0.4:
        return whole
    if form < 0.75:
        return tuple(dimension for dimension in whole if dimension)
    return stripped(whole)
