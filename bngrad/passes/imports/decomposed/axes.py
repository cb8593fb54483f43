"""The logical axes of values: they identify the dimensions of one value with those of another, in any shape.

A layout lists the axes that each dimension of a value consists of: none for a dimension of size 1, several
for one that a Reshape merged. Axes are equated where values meet elementwise, so an axis has the same number
wherever it occurs.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Size = int | str | None
"""A number, a symbol, or unknown."""

Dimension = tuple[int, ...]
Layout = tuple[Dimension, ...]


class Extent(NamedTuple):
    """The size of a dimension: a number times symbols; unknown sizes never compare equal."""

    number: int
    symbols: tuple[str, ...]


class Axes:
    """The axes of one graph, with those that are equal or consist of others."""

    def __init__(self) -> None:
        self._sizes: list[Size] = []
        self._made_of: dict[int, Dimension] = {}

    def new(self, size: Size) -> Dimension:
        """Returns a dimension with a new axis; without one if its size is 1."""
        if size == 1:
            return ()
        self._sizes.append(size)
        return (len(self._sizes) - 1,)

    def layout(self, shape: Iterable[Size]) -> Layout:
        """Returns new axes for a shape."""
        return tuple(self.new(size) for size in shape)

    def basic(self, dimension: Dimension) -> Dimension:
        """A dimension as axes that do not consist of others."""
        if not any(axis in self._made_of for axis in dimension):
            return dimension
        return tuple(part for axis in dimension for part in self._parts(axis))

    def resolve(self, layout: Layout) -> Layout:
        """A layout as axes that do not consist of others."""
        return tuple(map(self.basic, layout))

    def size(self, axis: int) -> Size:
        """The size of a basic axis."""
        return self._sizes[axis]

    def extent(self, dimension: Dimension) -> Extent | None:
        """The size of a dimension; None if it is unknown."""
        sizes = [self._sizes[axis] for axis in self.basic(dimension)]
        if None in sizes:
            return None
        symbols = sorted(size for size in sizes if isinstance(size, str))
        return Extent(prod(size for size in sizes if isinstance(size, int)), tuple(symbols))

    def equate(self, left: Dimension, right: Dimension) -> bool:
        """Equates two dimensions; returns whether their sizes allow it."""
        left, right = self.basic(left), self.basic(right)
        if left == right:
            return True
        extent = self.extent(left)
        if extent is None or extent != self.extent(right) or set(left) & set(right):
            return False
        if len(left) == 1:
            self._made_of[left[0]] = right
        elif len(right) == 1:
            self._made_of[right[0]] = left
        else:
            return self._equate_first(left, right) or self._equate_first(right, left)
        return True

    def _equate_first(self, left: Dimension, right: Dimension) -> bool:
        """Equates the first axis of one dimension with the first ones of another, and the rest with the rest."""
        first = self.extent(left[:1])
        place = next((place for place in range(1, len(right)) if self.extent(right[:place]) == first), None)
        return place is not None and self.equate(left[:1], right[:place]) and self.equate(left[1:], right[place:])

    def broadcast(self, layouts: Sequence[Layout]) -> Layout | None:
        """The layout of an elementwise result; None if sizes do not match, or may not."""
        rank = max(map(len, layouts))
        result = []
        for place in range(-rank, 0):
            met = [layout[place] for layout in layouts if len(layout) >= -place and layout[place]]
            if not all(self.equate(met[0], other) for other in met[1:]):
                return None
            result.append(met[0] if met else ())
        return tuple(result)

    def reshape(self, layout: Layout, shape: Sequence[Size]) -> Layout | None:
        """The layout of a Reshape; None if its dimensions neither merge axes nor split them."""
        left = [axis for dimension in self.resolve(layout) for axis in dimension]
        shape = list(shape)
        front = self._take(left, shape, from_end=False)
        back = self._take(left, shape, from_end=True)
        if len(shape) == 1:  # the rest, whatever the symbol of its size
            return (*front, tuple(left), *back)
        return None if shape or left else (*front, *back)

    def _take(self, left: list[int], shape: list[Size], *, from_end: bool) -> list[Dimension]:
        """Matches dimensions with axes from one end as far as possible, and removes both from their lists."""
        place = -1 if from_end else 0
        dimensions: list[Dimension] = []
        while shape and (dimension := self._match(left, shape[place], from_end=from_end)) is not None:
            shape.pop(place)
            dimensions.append(dimension)
        return dimensions[::-1] if from_end else dimensions

    def _match(self, left: list[int], size: Size, *, from_end: bool) -> Dimension | None:
        """Removes the axes of a dimension from the list of those that are left; None if they do not fit."""
        if size == 1:
            return ()
        place = -1 if from_end else 0
        if isinstance(size, str):
            return (left.pop(place),) if left and self._sizes[left[place]] == size else None
        if not size:
            return None
        taken: list[int] = []
        rest, needed = list(left), size
        while needed != 1:
            have = self._sizes[rest[place]] if rest else None
            if not isinstance(have, int) or not have or (have % needed if have > needed else needed % have):
                return None
            if have > needed:
                parts = self._split(rest.pop(place), needed, from_end=from_end)
                rest = [*rest, *parts] if from_end else [*parts, *rest]
                have = needed
            needed //= have
            taken.append(rest.pop(place))
        left[:] = rest
        return tuple(taken[::-1] if from_end else taken)

    def _split(self, axis: int, size: int, *, from_end: bool) -> list[int]:
        """Splits an axis into two, of which the one at an end has a given size."""
        total = self._sizes[axis]
        assert isinstance(total, int), "see `_match`"  # noqa: S101
        sizes = [total // size, size] if from_end else [size, total // size]
        parts = [self.new(part_size)[0] for part_size in sizes]
        self._made_of[axis] = tuple(parts)
        return parts

    def _parts(self, axis: int) -> Dimension:
        """The basic axes of an axis; all axes on the way are resolved to basic ones."""
        waiting = [axis]
        while waiting:
            parts = self._made_of.get(waiting[-1], ())
            composite = [part for part in parts if part in self._made_of]
            longer = [part for part in composite if any(inner in self._made_of for inner in self._made_of[part])]
            if longer:
                waiting += longer
                continue
            if composite:
                self._made_of[waiting[-1]] = tuple(
                    basic for part in parts for basic in self._made_of.get(part, (part,))
                )
            waiting.pop()
        return self._made_of.get(axis, (axis,))
