"""Arrays as kernels like them: from the beginning of a cache line on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

CACHE_LINE = 64
"""In bytes. NumPy's own arrays begin at a multiple of 16. Rows that are whole lines are the faster ones, and only
they are written past the caches."""


def empty_at_cache_line(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Returns an array that begins at a cache line, as allocators of tensors have it; nothing is written to it."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size].view(dtype).reshape(shape)
