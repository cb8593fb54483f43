"""Float32 arrays that are views of one vector, so that an optimizer updates them all at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bngrad.ort_training.checkpoint_file import Array

_ALIGNMENT = 16
"""The alignment of each array in the vector, in elements: a cache line."""


class FlatArrays:
    """Zeros of some shapes. Between the arrays the vector has zeros, too.

    Attributes:
        vector: All of them, in their order.
        views: Each array by its name, as a view of the vector.

    Args:
        shapes: The shape of each array, by its name.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        sizes = {name: math.prod(shape) for name, shape in shapes.items()}
        starts, total = {}, 0
        for name, size in sizes.items():
            starts[name] = total
            total += size + -size % _ALIGNMENT
        self.vector: Array = np.zeros(total, np.float32)
        self.views: dict[str, Array] = {
            name: self.vector[start : start + sizes[name]].reshape(shapes[name]) for name, start in starts.items()
        }

    def set(self, values: Mapping[str, Array]) -> None:
        """Copies values into the arrays of the same names."""
        for name, value in values.items():
            np.copyto(self.views[name], value)
