"""Adam, as the op AdamUpdate of ``bngrad``, in the order of operations of `torch.optim`.

With weight w, gradient g, learning rate lr and step count t (1 at the weight's first update)::

    g = g + weight_decay w                 Adam;      w = w (1 - lr weight_decay)      AdamW
    exp_avg = exp_avg + (1 - beta1) (g - exp_avg)
    exp_avg_sq = beta2 exp_avg_sq + (1 - beta2) g g
    w = w - lr / (1 - beta1^t) exp_avg / (sqrt(exp_avg_sq) / sqrt(1 - beta2^t) + eps)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bngrad.option_fields import option
from bngrad.training.optim.base import Optimizer
from bngrad.training.optim.ranges import require_range

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.training.optim.groups import WeightOptions
    from bngrad.training.optim.nodes import UpdateNodes, Weight


@dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """Adam with an L2 penalty, as `torch.optim.Adam`.

    Args:
        beta1: The decay rate of the running mean of gradients.
        beta2: The decay rate of the running mean of squared gradients.
        eps: The term that is added to the denominator.
        weight_decay: The L2 penalty: it times the weight is added to the gradient.

    Raises:
        InputError: A hyperparameter is out of range.
    """

    name = "adam"
    torch = "Adam"
    torch_counts = True
    group_op = "AdamGroupUpdate"
    slots = ("exp_avg", "exp_avg_sq")
    second_moment = "exp_avg_sq"
    decoupled: ClassVar[bool] = False
    """True if weight decay shrinks the weight; False if it is an L2 penalty."""

    beta1: float = option(0.9, "Decay rate of the mean of gradients of {}")
    beta2: float = option(0.999, "Decay rate of the mean of squared gradients of {}")
    eps: float = option(1e-8, "Term added to the denominator of {}")
    weight_decay: float = option(0.0, "Weight decay")

    def __post_init__(self) -> None:
        require_range(self, eps=self.eps, weight_decay=self.weight_decay)
        require_range(self, below=1, beta1=self.beta1, beta2=self.beta2)

    def update(self, nodes: UpdateNodes, weight: Weight) -> list[ir.Value]:
        """The op AdamUpdate."""
        return nodes.adam_update(weight, *self.group_scalars(nodes, weight))

    def group_scalars(self, nodes: UpdateNodes, weight: Weight) -> list[ir.Value]:
        """The coefficients of AdamUpdate."""
        return [nodes.coefficients(weight, lambda: self._coefficients(nodes, weight.options))]

    def _coefficients(self, nodes: UpdateNodes, options: WeightOptions) -> list[ir.Value]:
        rate, unit, decay = nodes.double_rate(options), nodes.double(1), options.weight_decay
        shrunk = unit
        if self.decoupled and decay:
            shrunk = nodes.op("Sub", unit, nodes.op("Mul", rate, nodes.double(decay)))
        return [
            nodes.double_gradient_scale(),
            nodes.double(0 if self.decoupled else decay),
            shrunk,
            nodes.double(1 - self.beta1),
            nodes.double(self.beta2),
            nodes.double(1 - self.beta2),
            nodes.op("Div", rate, nodes.bias_correction(self.beta1, options)),
            nodes.op("Sqrt", nodes.bias_correction(self.beta2, options)),
            nodes.double(self.eps),
        ]
