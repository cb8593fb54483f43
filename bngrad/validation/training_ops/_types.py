"""Types of arrays and attributes of the ops.

The annotations are for float64, although the functions also work in float32.
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
    """Returns the default of an attribute as ONNX stores it, rounded to float32."""
    return float(np.float32(value))
