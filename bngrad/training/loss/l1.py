"""The absolute error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bngrad.training.loss.base import LossFunction

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.training.loss.nodes import LossNodes


@dataclass(frozen=True, eq=False)
class L1(LossFunction):
    """The absolute error, see `torch.nn.functional.l1_loss`.

    Args:
        reduction: ``mean`` or ``sum``, over all elements.
    """

    name = "l1"

    def append(self, make: LossNodes, x: ir.Value, target: ir.Value) -> ir.Value:
        """|x - t|."""
        return self._reduced(make, make.op("Abs", make.op("Sub", x, target)))
