"""Allocation of arrays aligned to cache lines."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

CACHE_LINE = 64
"""In bytes. NumPy aligns its arrays to 16 bytes; the kernels use non-temporal stores for whole lines only."""


def empty_at_cache_line(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Returns an uninitialized array aligned to a cache line, as tensor allocators return it."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size].view(dtype).reshape(shape)
