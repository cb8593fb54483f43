"""RMSprop, in the order of operations of `torch.optim`.

With weight w, gradient g and learning rate lr::

    g = g + weight_decay w
    square_avg = alpha square_avg + (1 - alpha) g g
    grad_avg = grad_avg + (1 - alpha) (g - grad_avg)           if it is centered
    d = g / (sqrt(square_avg - grad_avg grad_avg) + eps)       without grad_avg if it is not
    momentum_buffer = momentum momentum_buffer + d             with momentum
    w = w - lr momentum_buffer                                 w - lr d without momentum
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bngrad.option_fields import option
from bngrad.training.optim.base import Optimizer
from bngrad.training.optim.ranges import require_range

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.training.optim.groups import WeightOptions
    from bngrad.training.optim.nodes import UpdateNodes, Weight


@dataclass(frozen=True, kw_only=True)
class RMSprop(Optimizer):
    """RMSprop with an L2 penalty, as `torch.optim.RMSprop`.

    Where rounding makes a centered second moment negative, it is 0; PyTorch gives NaN.

    Args:
        alpha: The decay rate of the running means of gradients and of squared gradients.
        eps: The term that is added to the denominator.
        momentum: The factor of the old momentum buffer; 0 for none.
        centered: Whether to divide by the standard deviation of gradients, and not by their root mean square.
        weight_decay: The L2 penalty: it times the weight is added to the gradient.

    Raises:
        InputError: A hyperparameter is out of range.
    """

    name = "rmsprop"
    torch = "RMSprop"
    torch_counts = True
    group_op = "RmspropGroupUpdate"
    second_moment = "square_avg"

    alpha: float = option(0.99, "Decay rate of the mean of squared gradients of {}")
    eps: float = option(1e-8, "Term added to the denominator of {}")
    momentum: float = option(0.0, "Momentum of {}")
    centered: bool = option(False, "Divide by the standard deviation of gradients with {}")
    weight_decay: float = option(0.0, "Weight decay")

    def __post_init__(self) -> None:
        require_range(self, eps=self.eps, momentum=self.momentum, weight_decay=self.weight_decay)
        require_range(self, below=1, alpha=self.alpha)

    @property
    def slots(self) -> tuple[str, ...]:
        """The second moment, and the buffers of momentum and centering."""
        momentum = ("momentum_buffer",) if self.momentum else ()
        return ("square_avg", *momentum, *(("grad_avg",) if self.centered else ()))

    def update(self, nodes: UpdateNodes, weight: Weight) -> list[ir.Value]:
        """The formula above."""
        op, g = nodes.op, nodes.gradient(weight, weight.options.weight_decay)
        old = dict(zip(self.slots, weight.slots, strict=True))
        share = nodes.number(1 - self.alpha, weight)
        kept = op("Mul", old["square_avg"], nodes.number(self.alpha, weight))
        moment = op("Add", kept, op("Mul", op("Mul", g, g), share))
        new = {"square_avg": moment}
        if self.centered:
            mean = op("Add", old["grad_avg"], op("Mul", op("Sub", g, old["grad_avg"]), share))
            new["grad_avg"] = mean
            moment = op("Max", op("Sub", moment, op("Mul", mean, mean)), nodes.number(0, weight))
        direction = op("Div", g, op("Add", op("Sqrt", moment), nodes.number(self.eps, weight)))
        if self.momentum:
            buffer = op("Mul", old["momentum_buffer"], nodes.number(self.momentum, weight))
            new["momentum_buffer"] = direction = op("Add", buffer, direction)
        return [nodes.minus(weight, direction), *(new[slot] for slot in self.slots)]

    def group_attributes(self, options: WeightOptions) -> dict[str, float]:
        """The hyperparameters."""
        return {
            "alpha": float(self.alpha),
            "centered": int(self.centered),
            "eps": float(self.eps),
            "momentum": float(self.momentum),
            "one_minus_alpha": float(1 - self.alpha),
            "weight_decay": float(options.weight_decay),
        }
