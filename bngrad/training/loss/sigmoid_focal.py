"""The focal loss of binary logits.

With p = sigmoid(x), the target t and the binary cross entropy bce, it is alpha_t (1 - p_t)^gamma bce, where
p_t = p t + (1 - p) (1 - t) and alpha_t = alpha t + (1 - alpha) (1 - t). 1 - p_t is a sum of sigmoid(-x) and
sigmoid(x), which are exp(-softplus(x)) and exp(-softplus(-x)): no digits cancel.
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

_TINY = 1e-37
"""The least 1 - p_t, whose powers are finite in float; the cross entropy is 0 there."""


@dataclass(frozen=True, eq=False)
class SigmoidFocal(LossFunction):
    """The focal loss of binary logits, see `torchvision.ops.sigmoid_focal_loss`, of Lin et al., 2017.

    Args:
        reduction: ``mean`` or ``sum``, over all elements.
        alpha: The weight of positive targets, from 0 to 1; that of negative ones is 1 - alpha. -1 for no weights.
        gamma: The exponent of 1 - p_t, at least 0: how little easy elements count.
    """

    name = "sigmoid_focal"
    normalizes = ("Sigmoid", "Softmax", "LogSoftmax")

    alpha: float = option(
        0.25, "Weight of positive targets for {}, from 0 to 1; -1 for no weights", command_line="--focal-alpha"
    )
    gamma: float = option(2.0, "Exponent of {}: how little easy elements count", command_line="--focal-gamma")

    def __post_init__(self) -> None:
        """Checks the options."""
        super().__post_init__()
        for option_name in ("alpha", "gamma"):
            object.__setattr__(self, option_name, require_number(option_name, getattr(self, option_name)))
        if not 0 <= self.alpha <= 1 and self.alpha != -1:
            raise InputError(f"alpha is {self.alpha!r}; expected a number from 0 to 1, or -1 for no weights")
        if not 0 <= self.gamma < math.inf:
            raise InputError(f"gamma is {self.gamma!r}; expected a finite number, at least 0")

    def append(self, make: LossNodes, x: ir.Value, target: ir.Value) -> ir.Value:
        """The cross entropy, with its factors."""
        absent = make.op("Sub", make.number(1), target)
        of_negative, of_positive = make.softplus(x), make.softplus(make.op("Neg", x))
        losses = make.op("Add", make.op("Mul", absent, of_negative), make.op("Mul", target, of_positive))
        if self.gamma:
            miss = make.op("Mul", target, make.op("Exp", make.op("Neg", of_negative)))
            false_alarm = make.op("Mul", absent, make.op("Exp", make.op("Neg", of_positive)))
            distance = make.op("Max", make.op("Add", miss, false_alarm), make.number(_TINY))
            losses = make.op("Mul", losses, make.op("Pow", distance, make.number(self.gamma)))
        if self.alpha >= 0:
            positive = make.op("Mul", target, make.number(self.alpha))
            negative = make.op("Mul", absent, make.number(1 - self.alpha))
            losses = make.op("Mul", losses, make.op("Add", positive, negative))
        return self._reduced(make, losses)
