"""The squared error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bngrad.training.loss.base import LossFunction

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.training.loss.nodes import LossNodes


@dataclass(frozen=True, eq=False)
class MSE(LossFunction):
    """The squared error, see `torch.nn.functional.mse_loss`.

    Args:
        reduction: ``mean`` or ``sum``, over all elements.
    """

    name = "mse"

    def append(self, make: LossNodes, x: ir.Value, target: ir.Value) -> ir.Value:
        """(x - t)^2."""
        error = make.op("Sub", x, target)
        return self._reduced(make, make.op("Mul", error, error))
