"""Stochastic gradient descent, in the order of operations of `torch.optim`.

With weight w, gradient g and learning rate lr::

    g = g + weight_decay w
    momentum_buffer = momentum momentum_buffer + g
    d = g + momentum momentum_buffer       with Nesterov, else momentum_buffer; g without momentum
    w = w - lr d
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bngrad.errors import InputError
from bngrad.option_fields import option
from bngrad.training.optim.base import Optimizer
from bngrad.training.optim.ranges import require_range

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.training.optim.groups import WeightOptions
    from bngrad.training.optim.nodes import UpdateNodes, Weight


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Stochastic gradient descent, as `torch.optim.SGD` with a dampening of 0.

    Args:
        momentum: The factor of the old momentum buffer; 0 for none.
        nesterov: Whether to use Nesterov momentum, which needs a momentum above 0.
        weight_decay: The L2 penalty: it times the weight is added to the gradient.

    Raises:
        InputError: A hyperparameter is out of range.
    """

    name = "sgd"
    torch = "SGD"
    group_op = "SgdGroupUpdate"

    momentum: float = option(0.0, "Momentum of {}")
    nesterov: bool = option(False, "Use Nesterov momentum with {}")
    weight_decay: float = option(0.0, "Weight decay")

    def __post_init__(self) -> None:
        require_range(self, momentum=self.momentum, weight_decay=self.weight_decay)
        if self.nesterov and not self.momentum:
            raise InputError("sgd: nesterov is true and momentum is 0; expected a momentum above 0, such as 0.9")

    @property
    def slots(self) -> tuple[str, ...]:
        """The momentum buffer, if there is momentum."""
        return ("momentum_buffer",) if self.momentum else ()

    def update(self, nodes: UpdateNodes, weight: Weight) -> list[ir.Value]:
        """The formula above."""
        g = nodes.gradient(weight, weight.options.weight_decay)
        if not self.momentum:
            return [nodes.minus(weight, g)]
        momentum = nodes.number(self.momentum, weight)
        buffer = nodes.op("Add", nodes.op("Mul", weight.slots[0], momentum), g)
        direction = nodes.op("Add", g, nodes.op("Mul", buffer, momentum)) if self.nesterov else buffer
        return [nodes.minus(weight, direction), buffer]

    def group_attributes(self, options: WeightOptions) -> dict[str, float]:
        """The hyperparameters."""
        return {
            "momentum": float(self.momentum),
            "nesterov": int(self.nesterov),
            "weight_decay": float(options.weight_decay),
        }
