"""Cross entropy of logits and labels.

Of logits x [N, C, d1, ...] and labels t [N, d1, ...], with p = log_softmax(x) over the classes::

    l_i = -w[t_i] p_i[t_i]                                  0 where t_i is ignore_index
    s_i = -sum over c of w[c] p_i[c]                        0 where t_i is ignore_index
    sum:   (1 - label_smoothing) sum l + label_smoothing / C sum s
    mean:  the same, divided by the sum of w[t_i] where t_i is not ignore_index
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING

from bngrad.arguments import require_number
from bngrad.errors import InputError, ModelError
from bngrad.option_fields import option
from bngrad.training.loss.base import LossFunction, typed
from bngrad.training.loss.weights import require_classes, require_numbers

if TYPE_CHECKING:
    import onnx_ir as ir
    from numpy.typing import ArrayLike

    from bngrad.opset.known_shapes import KnownShape
    from bngrad.training.loss.nodes import LossNodes

NO_CLASS = 10**9
"""Subtracted from a negative label, which ONNX's ops would count from the last class: it is out of bounds then."""


@dataclass(frozen=True, eq=False)
class CrossEntropy(LossFunction):
    """Cross entropy of logits and labels, with the classes in dimension 1.

    See `torch.nn.functional.cross_entropy`.

    Args:
        reduction: ``mean`` or ``sum``; the mean is weighted by ``weight``, and NaN if all labels are ignored.
        weight: The weight of each class, [C].
        ignore_index: The label of samples that do not count.
        label_smoothing: The part of the target that is spread over all classes, from 0 to 1.
    """

    name = "cross_entropy"
    takes_labels = True
    normalizes = ("Softmax", "Sigmoid")  # the log-softmax of a log-softmax is itself

    weight: ArrayLike | None = option(
        None, "Weight of each class for {}", metavar="FILE.npy", command_line="--class-weights"
    )
    ignore_index: int = option(-100, "Label that {} ignores")
    label_smoothing: float = option(0.0, "For {}, from 0 to 1")

    def __post_init__(self) -> None:
        """Checks the options."""
        super().__post_init__()
        require_numbers("weight", self.weight, rank=1)
        ignored: object = self.ignore_index
        if isinstance(ignored, bool) or not isinstance(ignored, Integral):
            raise InputError(f"ignore_index is {ignored!r}; expected an integer")
        object.__setattr__(self, "label_smoothing", require_number("label_smoothing", self.label_smoothing))
        if not 0 <= self.label_smoothing <= 1:
            raise InputError(f"label_smoothing is {self.label_smoothing!r}; expected a number from 0 to 1")

    def target_shape(self, prediction: ir.Value, shape: KnownShape) -> KnownShape:
        """A label for each sample and position."""
        if len(shape) < 2:
            raise ModelError(
                f"prediction {typed(prediction)} has no classes for cross_entropy; expected logits [N, C, ...]"
            )
        if shape[1] == 1:
            raise ModelError(
                f"prediction {typed(prediction)} has one class, so its cross_entropy is always 0; for two classes "
                "with one logit use bce_with_logits"
            )
        if self.weight is not None:
            require_classes(self.weight, shape[1])
        return (shape[0], *shape[2:])

    def append(self, make: LossNodes, x: ir.Value, target: ir.Value) -> ir.Value:
        """SoftmaxCrossEntropyLoss, and for label smoothing the weighted sum of its log-probabilities."""
        labels = self._in_bounds(make, target)
        weight = [] if self.weight is None else [make.number(self.weight)]
        outputs = make.outputs_of(
            "SoftmaxCrossEntropyLoss",
            x,
            labels,
            *weight,
            outputs=["nll", "log_prob"] if self.label_smoothing else ["nll"],
            ignore_index=int(self.ignore_index),
            reduction=self.reduction,
        )
        if not self.label_smoothing:
            return outputs[0]
        ignored = make.op("Equal", target, make.int64(int(self.ignore_index)))
        smooth = self._smooth(make, x, outputs[1], ignored)
        if self.reduction == "mean":
            smooth = make.op("Div", smooth, self._total(make, target, ignored))
        parts = ((1 - self.label_smoothing, outputs[0]), (self.label_smoothing, smooth))
        return make.op("Add", *(make.op("Mul", make.number(share), part) for share, part in parts))

    def _in_bounds(self, make: LossNodes, labels: ir.Value) -> ir.Value:
        """The labels, with negative ones out of the bounds of the ops that look them up."""
        negative = make.op("Less", labels, make.int64(0))
        if self.ignore_index < 0:
            ignored = make.op("Equal", labels, make.int64(int(self.ignore_index)))
            negative = make.op("And", negative, make.op("Not", ignored))
        return make.op("Where", negative, make.op("Sub", labels, make.int64(NO_CLASS)), labels)

    def _smooth(self, make: LossNodes, x: ir.Value, log_prob: ir.Value, ignored: ir.Value) -> ir.Value:
        """The sum of s / C over all samples."""
        if self.weight is not None:
            log_prob = make.op("Mul", log_prob, make.by_class(self.weight, x))
        by_sample = make.op("Neg", make.op("ReduceSum", log_prob, make.int64([1]), keepdims=0))
        by_sample = make.op("Where", ignored, make.number(0), by_sample)
        return make.op("Div", make.op("ReduceSum", by_sample, keepdims=0), make.number_of_classes(x))

    def _total(self, make: LossNodes, labels: ir.Value, ignored: ir.Value) -> ir.Value:
        """The sum of the weights of all labels that are not ignored."""
        weight: ir.Value = make.number(1)
        if self.weight is not None:
            classes = make.op("Where", ignored, make.int64(0), labels)
            weight = make.op("Gather", make.number(self.weight), classes)
        counted = make.op("Where", ignored, make.number(0), weight)
        return make.op("ReduceSum", counted, keepdims=0)
