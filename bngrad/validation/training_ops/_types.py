"""The arrays of the ops, and the numbers that their attributes are.

The arithmetic also runs in float32; float64 is what these modules are for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Index = tuple[Any, ...]
Mask = NDArray[np.bool_]


def default(value: float) -> float:
    """Returns an attribute's default as ONNX has it: a float32, like the value that a rewrite spells out."""
    return float(np.float32(value))
