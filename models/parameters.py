"""Random initial values for the parameters of a network.

The random generator of each array is seeded with the seed and the parameter's name, so its values do not depend on
the order of the nodes or on other parameters.

No two arrays are equal, and none contains only zeros or ones: ONNX Runtime merges initializers with equal
contents, and a running mean of 0 would hide a wrong momentum.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Array = npt.NDArray[np.float32]

_SPREAD = np.float32(0.1)


@dataclass(frozen=True)
class Parameters:
    """Draws initial values in float32 from a seed and the name of the parameter."""

    seed: int = 0

    def weight(self, name: str, shape: Sequence[int]) -> Array:
        """Returns He-normal weights: Conv ``[out, in/group, *kernel]``, or Gemm with transB = 1 ``[out, in]``."""
        fan_in = math.prod(shape[1:])
        return self._normal(name, shape) * np.float32(math.sqrt(2 / fan_in))

    def around_zero(self, name: str, shape: Sequence[int]) -> Array:
        """Returns normal values with standard deviation 0.1, for biases and running means."""
        return self._normal(name, shape) * _SPREAD

    def around_one(self, name: str, shape: Sequence[int]) -> Array:
        """Returns normal values with mean 1 and standard deviation 0.1, for scales."""
        return 1 + self._normal(name, shape) * _SPREAD

    def variance(self, name: str, shape: Sequence[int]) -> Array:
        """Returns uniform values in [0.5, 1.5), for running variances, which must be positive."""
        return self._stream(name).random(shape, dtype=np.float32) + np.float32(0.5)

    def _normal(self, name: str, shape: Sequence[int]) -> Array:
        return self._stream(name).standard_normal(shape, dtype=np.float32)

    def _stream(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])
