"""The Huber loss.

With the error d = |x - t| and c = min(d, delta) it is c (d - c / 2): d^2 / 2 up to delta, then
delta (d - delta / 2). Its gradient is c sign(x - t), also where d is delta.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bngrad.arguments import require_number
from bngrad.errors import InputError
from bngrad.option_fields import option
from bngrad.training.loss.base import LossFunction

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.training.loss.nodes import LossNodes


@dataclass(frozen=True, eq=False)
class Huber(LossFunction):
    """The Huber loss, see `torch.nn.functional.huber_loss`: quadratic in small errors, linear in large ones.

    Args:
        reduction: ``mean`` or ``sum``, over all elements.
        delta: The absolute error from which the loss is linear, above 0.
    """

    name = "huber"

    delta: float = option(1.0, "Absolute error from which {} is linear")

    def __post_init__(self) -> None:
        """Checks the options."""
        super().__post_init__()
        object.__setattr__(self, "delta", require_number("delta", self.delta))
        if not 0 < self.delta < math.inf:
            raise InputError(f"delta is {self.delta!r}; expected a finite number above 0")

    def append(self, make: LossNodes, x: ir.Value, target: ir.Value) -> ir.Value:
        """C (d - c / 2)."""
        error = make.op("Abs", make.op("Sub", x, target))
        limited = make.op("Min", error, make.number(self.delta))
        losses = make.op("Mul", limited, make.op("Sub", error, make.op("Mul", make.number(0.5), limited)))
        return self._reduced(make, losses)
