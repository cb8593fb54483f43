"""The tensors and weights of a model that are rounded to 8 bits, by their names."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from bngrad.options import Quantize

OPSET = 18
"""The oldest opset of a model with rounded values, in which ReduceMax takes its axes as an input."""

UNSEEN = (1.0, -1.0)
"""The range of a tensor before the first step: the least value is above the largest."""

SMALLEST_SCALE = 2.0**-23
"""The scale of values that are all 0, as in PyTorch."""

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

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the largest integer of an activation."""
        low, high = (np.iinfo(self.activations).min, np.iinfo(self.activations).max)
        return (int(low) + self.symmetric, int(high))

    @property
    def dtype(self) -> ir.DataType:
        """The type of activations in a model."""
        return ir.DataType[self.activations.upper()]
