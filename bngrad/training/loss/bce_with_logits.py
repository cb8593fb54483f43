"""Binary cross entropy of logits.

It is w ((1 - t) softplus(x) + pos_weight t softplus(-x)), which neither overflows nor cancels for t in [0, 1], and
whose gradient is right at x = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bngrad.option_fields import option
from bngrad.training.loss.base import LossFunction
from bngrad.training.loss.weights import require_broadcasting, require_numbers

if TYPE_CHECKING:
    import onnx_ir as ir
    from numpy.typing import ArrayLike

    from bngrad.opset.known_shapes import KnownShape
    from bngrad.training.loss.nodes import LossNodes


@dataclass(frozen=True, eq=False)
class BCEWithLogits(LossFunction):
    """Binary cross entropy of logits, see `torch.nn.functional.binary_cross_entropy_with_logits`.

    Args:
        reduction: ``mean`` or ``sum``, over all elements.
        weight: Multiplies the loss of each element; of a shape that broadcasts to the prediction's.
        pos_weight: Multiplies the loss of positive targets; of a shape that broadcasts to the prediction's.
    """

    name = "bce_with_logits"
    normalizes = ("Sigmoid", "Softmax", "LogSoftmax")

    weight: ArrayLike | None = option(
        None, "Weight of each element for {}", metavar="FILE.npy", command_line="--class-weights"
    )
    pos_weight: ArrayLike | None = option(
        None, "Weight of positive targets for {}: a number or a .npy file", metavar="VALUE"
    )

    def __post_init__(self) -> None:
        """Checks the options."""
        super().__post_init__()
        require_numbers("weight", self.weight)
        require_numbers("pos_weight", self.pos_weight)

    def target_shape(self, prediction: ir.Value, shape: KnownShape) -> KnownShape:
        """The shape of the prediction."""
        require_broadcasting("weight", self.weight, prediction, shape)
        require_broadcasting("pos_weight", self.pos_weight, prediction, shape)
        return shape

    def append(self, make: LossNodes, x: ir.Value, target: ir.Value) -> ir.Value:
        """The two terms with softplus, weighted."""
        positive = make.op("Mul", target, make.softplus(make.op("Neg", x)))
        if self.pos_weight is not None:
            positive = make.op("Mul", positive, make.number(self.pos_weight))
        absent = make.op("Sub", make.number(1), target)
        losses = make.op("Add", make.op("Mul", absent, make.softplus(x)), positive)
        if self.weight is not None:
            losses = make.op("Mul", losses, make.number(self.weight))
        return self._reduced(make, losses)
