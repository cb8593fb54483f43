"""Lion: Algorithm 2 of Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023.

With weight w, gradient g and learning rate lr::

    c = beta1 exp_avg + (1 - beta1) g
    w = w - lr (sign(c) + weight_decay w)
    exp_avg = beta2 exp_avg + (1 - beta2) g
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
class Lion(Optimizer):
    """Lion, by the formula of its paper. Its learning rates are 3 to 10 times smaller than those of AdamW.

    Args:
        beta1: The part of the momentum in the direction of an update.
        beta2: The decay rate of the momentum.
        weight_decay: Decoupled: it times the weight is added to the sign of the direction.

    Raises:
        InputError: A hyperparameter is out of range.
    """

    name = "lion"
    group_op = "LionGroupUpdate"
    slots = ("exp_avg",)

    beta1: float = option(0.9, "Part of the momentum in the direction of {}")
    beta2: float = option(0.99, "Decay rate of the momentum of {}")
    weight_decay: float = option(0.0, "Weight decay")

    def __post_init__(self) -> None:
        require_range(self, weight_decay=self.weight_decay)
        require_range(self, below=1, beta1=self.beta1, beta2=self.beta2)

    def update(self, nodes: UpdateNodes, weight: Weight) -> list[ir.Value]:
        """The formula above."""
        op, g, (momentum,) = nodes.op, nodes.gradient(weight), weight.slots

        def mixed(beta: float) -> ir.Value:
            kept = op("Mul", momentum, nodes.number(beta, weight))
            return op("Add", kept, op("Mul", g, nodes.number(1 - beta, weight)))

        direction = op("Sign", mixed(self.beta1))
        if decay := weight.options.weight_decay:
            direction = op("Add", direction, op("Mul", weight.value, nodes.number(decay, weight)))
        return [nodes.minus(weight, direction), mixed(self.beta2)]

    def group_attributes(self, options: WeightOptions) -> dict[str, float]:
        """The hyperparameters."""
        return {
            "beta1": float(self.beta1),
            "beta2": float(self.beta2),
            "one_minus_beta1": float(1 - self.beta1),
            "one_minus_beta2": float(1 - self.beta2),
            "weight_decay": float(options.weight_decay),
        }
