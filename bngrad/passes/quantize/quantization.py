"""The tensors and weights of a model that are rounded to 8 bits, by their names."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from bngrad.errors import InputError
from bngrad.options import Quantize

if TYPE_CHECKING:
    from numpy.typing import NDArray

UNSEEN = (1.0, -1.0)
"""The range of a tensor before the first step: the least value is above the largest."""

SMALLEST_SCALE = 2.0**-23
"""The smallest scale of an activation, as in PyTorch."""

SMALLEST_WEIGHT_SCALE = 2.0**-100
"""The smallest scale of a weight, whose product with that of an activation float has, too."""

LARGEST_WEIGHT = 127
"""The largest integer of a weight; the least is its negative, so that weights have no zero point."""


@dataclass(frozen=True)
class Quantization:
    """The values that a training step rounds. Its metadata and its states record them."""

    activations: Quantize
    """The type of activations."""
    symmetric: bool
    """True if the zero point of activations is the middle of the integers."""
    ranges: Mapping[str, str]
    """The running statistic with the least and the largest value of a tensor, by the name of the tensor."""
    weights: Mapping[str, tuple[int, ...]]
    """The inputs of a Conv, Gemm or MatMul that are weights, by the name of its output."""
    scales: Mapping[str, str] = field(default_factory=dict)
    """The weight with the learned scale of a tensor, by the name of the tensor; none if scales follow ranges."""

    def __post_init__(self) -> None:
        if not all(set(operands) <= {0, 1} for operands in self.weights.values()):
            raise ValueError("a weight is none of the first two inputs")

    @property
    def state(self) -> tuple[str, ...]:
        """The names of the ranges and learned scales, which the model in float does not have."""
        return (*self.ranges.values(), *self.scales.values())

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the largest integer of an activation."""
        low, high = (np.iinfo(self.activations).min, np.iinfo(self.activations).max)
        return (int(low) + self.symmetric, int(high))

    @property
    def dtype(self) -> ir.DataType:
        """The type of activations in a model."""
        return ir.DataType[self.activations.upper()]


def is_unseen(limits: "NDArray[Any]") -> bool:
    """Returns whether a range is that of a tensor before the first step."""
    return bool(limits[0] > limits[1])


def require_range(name: str, limits: "NDArray[Any]") -> None:
    """Checks a range: two numbers in float32.

    Raises:
        InputError: It is not finite, or 0 is not in it.
    """
    if not np.isfinite(limits).all() or not (is_unseen(limits) or limits[0] <= 0 <= limits[1]):
        raise InputError(f"the range {name!r} is {limits.tolist()}; expected finite numbers, with 0 between them")


def require_scale(name: str, scale: "NDArray[Any]") -> None:
    """Checks a learned scale: a number in float32, which is 0 before the first step.

    Raises:
        InputError: It is not finite, or negative.
    """
    if not np.isfinite(scale) or scale < 0:
        raise InputError(
            f"the scale {name!r} is {scale}; expected a finite number, or 0 to take that of the range"
        )
