"""Seeded first values for the parameters of a network.

Each array is drawn from a stream of its own, made of the seed and the parameter's name, so its values depend
neither on the order of the network's nodes nor on the parameters around it.

No two arrays are equal, and none is all zeros or all ones: ONNX Runtime merges initializers of equal
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
    """Draws a parameter's first value, in float32, from a seed and the parameter's name."""

    seed: int = 0

    def weight(self, name: str, shape: Sequence[int]) -> Array:
        """He-normal weights: Conv ``[out, in/group, *kernel]``, or Gemm with transB = 1 ``[out, in]``."""
        fan_in = math.prod(shape[1:])
        return self._normal(name, shape) * np.float32(math.sqrt(2 / fan_in))

    def around_zero(self, name: str, shape: Sequence[int]) -> Array:
        """Biases and running means: normal, with standard deviation 0.1."""
        return self._normal(name, shape) * _SPREAD

    def around_one(self, name: str, shape: Sequence[int]) -> Array:
        """Scales: normal around 1, with standard deviation 0.1."""
        return 1 + self._normal(name, shape) * _SPREAD

    def variance(self, name: str, shape: Sequence[int]) -> Array:
        """Running variances: uniform in [0.5, 1.5), so always positive."""
        return self._stream(name).random(shape, dtype=np.float32) + np.float32(0.5)

    def _normal(self, name: str, shape: Sequence[int]) -> Array:
        return self._stream(name).standard_normal(shape, dtype=np.float32)

    def _stream(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])
