"""Loss functions as ONNX nodes, with the semantics of `torch.nn.functional`.

A loss of x (the prediction) and t (the target), reduced to its mean or its sum:

* `CrossEntropy`, of logits x [N, C, d1, ...] and labels t [N, d1, ...], with p = log_softmax(x) over the classes::

      l_i = -w[t_i] p_i[t_i]                                  0 where t_i is ignore_index
      s_i = -sum over c of w[c] p_i[c]                        0 where t_i is ignore_index
      sum:   (1 - label_smoothing) sum l + label_smoothing / C sum s
      mean:  the same, divided by the sum of w[t_i] where t_i is not ignore_index

* `MSE`: (x - t)^2. `L1`: |x - t|.
* `BCEWithLogits`: w ((1 - t) softplus(x) + pos_weight t softplus(-x)), which neither overflows nor cancels for
  t in [0, 1], and whose gradient is right at x = 0.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
import onnx_ir as ir

from bngrad.arguments import require_choice, require_number
from bngrad.errors import InputError, ModelError
from bngrad.graph.shapes import dimension_of
from bngrad.opset.known_shapes import shape_text, type_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike

    from bngrad.graph.builder import NodeMaker
    from bngrad.opset.known_shapes import KnownShape

Reduction = Literal["mean", "sum"]
"""From the losses of the elements or samples to a scalar."""

NO_CLASS = 10**9
"""Subtracted from a negative label, which ONNX's ops would count from the last class: it is out of bounds then."""


@dataclass(frozen=True, eq=False)
class LossFunction(abc.ABC):
    """What a loss is computed of a prediction and a target."""

    name: ClassVar[str]
    wanted: ClassVar[str] = "target"
    """What the input with the target is called."""
    normalizes: ClassVar[tuple[str, ...]] = ()
    """The ops that must not be in front of the loss, which applies such a function itself."""

    reduction: Reduction = "mean"

    def __post_init__(self) -> None:
        """Checks the options.

        Raises:
            InputError: An option has an impossible value.
        """
        require_choice("reduction", self.reduction, get_args(Reduction))

    def target(self, prediction: ir.Value, shape: KnownShape) -> tuple[ir.DataType, KnownShape]:
        """The type and shape of the target.

        Raises:
            ModelError: The loss cannot be computed of such a prediction.
        """
        assert prediction.dtype is not None, "it is a float"  # noqa: S101
        return prediction.dtype, shape

    @abc.abstractmethod
    def append(self, make: NodeMaker, x: ir.Value, target: ir.Value) -> ir.Value:
        """Makes the nodes of the loss of a float or double prediction, and returns the loss."""

    def _reduced(self, make: NodeMaker, losses: ir.Value) -> ir.Value:
        return make.op(f"Reduce{self.reduction.capitalize()}", losses, keepdims=0)


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
    wanted = "labels"
    normalizes = ("Softmax", "Sigmoid")  # the log-softmax of a log-softmax is itself

    weight: ArrayLike | None = None
    ignore_index: int = -100
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        """Checks the options."""
        super().__post_init__()
        _require_numbers("weight", self.weight, rank=1)
        if isinstance(self.ignore_index, bool) or not isinstance(self.ignore_index, int | np.integer):
            raise InputError(f"ignore_index is {self.ignore_index!r}; expected an integer")
        object.__setattr__(self, "label_smoothing", require_number("label_smoothing", self.label_smoothing))
        if not 0 <= self.label_smoothing <= 1:
            raise InputError(f"label_smoothing is {self.label_smoothing!r}; expected a number from 0 to 1")

    def target(self, prediction: ir.Value, shape: KnownShape) -> tuple[ir.DataType, KnownShape]:
        """Labels in int64, one for each sample and position."""
        if len(shape) < 2:
            raise ModelError(
                f"prediction {typed(prediction)} has no classes for cross_entropy; expected logits [N, C, ...]"
            )
        if shape[1] == 1:
            raise ModelError(
                f"prediction {typed(prediction)} has one class, so its cross_entropy is always 0; for two classes "
                "with one logit use bce_with_logits"
            )
        classes = None if self.weight is None else np.size(self.weight)
        if classes is not None and isinstance(shape[1], int) and classes != shape[1]:
            raise InputError(f"weight has {classes} elements; expected {shape[1]}, one for each class")
        return ir.DataType.INT64, (shape[0], *shape[2:])

    def append(self, make: NodeMaker, x: ir.Value, target: ir.Value) -> ir.Value:
        """SoftmaxCrossEntropyLoss, and for label smoothing the weighted sum of its log-probabilities."""
        dtype, labels = _dtype(x), self._in_bounds(make, target)
        weight = [] if self.weight is None else [make.constant(self.weight, dtype)]
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
            smooth = make.op("Div", smooth, self._total(make, target, ignored, dtype))
        parts = ((1 - self.label_smoothing, outputs[0]), (self.label_smoothing, smooth))
        return make.op("Add", *(make.op("Mul", make.constant(share, dtype), part) for share, part in parts))

    def _in_bounds(self, make: NodeMaker, labels: ir.Value) -> ir.Value:
        """The labels, with negative ones out of the bounds of the ops that look them up."""
        negative = make.op("Less", labels, make.int64(0))
        if self.ignore_index < 0:
            ignored = make.op("Equal", labels, make.int64(int(self.ignore_index)))
            negative = make.op("And", negative, make.op("Not", ignored))
        return make.op("Where", negative, make.op("Sub", labels, make.int64(NO_CLASS)), labels)

    def _smooth(self, make: NodeMaker, x: ir.Value, log_prob: ir.Value, ignored: ir.Value) -> ir.Value:
        """The sum of s / C over all samples."""
        dtype = _dtype(x)
        if self.weight is not None:
            rank = len(x.shape or ())
            weight = np.reshape(np.asarray(self.weight), (-1, *[1] * (rank - 2)))
            log_prob = make.op("Mul", log_prob, make.constant(weight, dtype))
        of_each = make.op("ReduceSum", log_prob, make.int64([1]), keepdims=0)
        of_each = make.op("Where", ignored, make.constant(0, dtype), make.op("Neg", of_each))
        classes = make.op("Squeeze", make.cast(dimension_of(make, x, 1), dtype))
        return make.op("Div", make.op("ReduceSum", of_each, keepdims=0), classes)

    def _total(self, make: NodeMaker, labels: ir.Value, ignored: ir.Value, dtype: ir.DataType) -> ir.Value:
        """The sum of the weights of all labels that are not ignored."""
        weight: ir.Value = make.constant(1, dtype)
        if self.weight is not None:
            classes = make.op("Where", ignored, make.int64(0), labels)
            weight = make.op("Gather", make.constant(self.weight, dtype), classes)
        counted = make.op("Where", ignored, make.constant(0, dtype), weight)
        return make.op("ReduceSum", counted, keepdims=0)


@dataclass(frozen=True, eq=False)
class MSE(LossFunction):
    """The squared error, see `torch.nn.functional.mse_loss`.

    Args:
        reduction: ``mean`` or ``sum``, over all elements.
    """

    name = "mse"

    def append(self, make: NodeMaker, x: ir.Value, target: ir.Value) -> ir.Value:
        """(x - t)^2."""
        error = make.op("Sub", x, target)
        return self._reduced(make, make.op("Mul", error, error))


@dataclass(frozen=True, eq=False)
class L1(LossFunction):
    """The absolute error, see `torch.nn.functional.l1_loss`.

    Args:
        reduction: ``mean`` or ``sum``, over all elements.
    """

    name = "l1"

    def append(self, make: NodeMaker, x: ir.Value, target: ir.Value) -> ir.Value:
        """|x - t|."""
        return self._reduced(make, make.op("Abs", make.op("Sub", x, target)))


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

    weight: ArrayLike | None = None
    pos_weight: ArrayLike | None = None

    def __post_init__(self) -> None:
        """Checks the options."""
        super().__post_init__()
        _require_numbers("weight", self.weight)
        _require_numbers("pos_weight", self.pos_weight)

    def target(self, prediction: ir.Value, shape: KnownShape) -> tuple[ir.DataType, KnownShape]:
        """Probabilities, in the prediction's type and shape."""
        for what, value in (("weight", self.weight), ("pos_weight", self.pos_weight)):
            if value is not None and not _broadcasts(np.shape(value), shape):
                raise InputError(
                    f"{what} has shape {shape_text(np.shape(value))}; expected one that broadcasts to "
                    f"{shape_text(shape)}, the shape of prediction {prediction.name!r}"
                )
        return super().target(prediction, shape)

    def append(self, make: NodeMaker, x: ir.Value, target: ir.Value) -> ir.Value:
        """The two terms with softplus, weighted."""
        dtype = _dtype(x)
        positive = make.op("Mul", target, _softplus(make, make.op("Neg", x), dtype))
        if self.pos_weight is not None:
            positive = make.op("Mul", positive, make.constant(self.pos_weight, dtype))
        absent = make.op("Sub", make.constant(1, dtype), target)
        losses = make.op("Add", make.op("Mul", absent, _softplus(make, x, dtype)), positive)
        if self.weight is not None:
            losses = make.op("Mul", losses, make.constant(self.weight, dtype))
        return self._reduced(make, losses)


LOSS_FUNCTIONS: Mapping[str, type[LossFunction]] = {
    loss.name: loss for loss in (CrossEntropy, MSE, L1, BCEWithLogits)
}
"""All loss functions, by name."""


def loss_function(name: str, **options: Any) -> LossFunction:  # noqa: ANN401 - checked by the loss function
    """Returns a loss function by its name.

    Args:
        name: A key of `LOSS_FUNCTIONS`.
        options: Its fields; those that are None are left at their defaults.

    Raises:
        InputError: There is no such loss function, it has no such option, or an option has an impossible value.
    """
    require_choice("loss function", name, LOSS_FUNCTIONS)
    made = LOSS_FUNCTIONS[name]
    options = {option: value for option, value in options.items() if value is not None}
    known = [field.name for field in fields(made)]
    for option in options:
        if option not in known:
            raise InputError(f"loss function {name} has no {option}; its options are {', '.join(known)}")
    return made(**options)


def _softplus(make: NodeMaker, x: ir.Value, dtype: ir.DataType) -> ir.Value:
    """log(1 + exp(x)), with a gradient of 1/2 at 0.

    ONNX Runtime has no Softplus of double, and ONNX's definition of it overflows and cancels. With r = relu(x),
    u = exp(x - 2r) and s = 1 + u, as rounded, it is r + log(s) + (u - (s - 1)) / s.
    """
    if dtype != ir.DataType.DOUBLE:
        return make.op("Softplus", x)
    one, r = make.constant(1, dtype), make.op("Relu", x)
    u = make.op("Exp", make.op("Sub", x, make.op("Add", r, r)))
    s = make.op("Add", one, u)
    lost = make.op("Sub", u, make.op("Sub", s, one))
    return make.op("Add", r, make.op("Add", make.op("Log", s), make.op("Div", lost, s)))


def _require_numbers(what: str, values: ArrayLike | None, rank: int | None = None) -> None:
    if values is None:
        return
    array = np.asarray(values)
    if array.dtype.kind not in "fiu" or (rank is not None and array.ndim != rank) or not np.isfinite(array).all():
        expected = "finite numbers" if rank is None else "a vector of finite numbers"
        raise InputError(f"{what} is {array.dtype}{shape_text(array.shape)}; expected {expected}")


def _broadcasts(shape: tuple[int, ...], onto: KnownShape) -> bool:
    """Whether a shape broadcasts to another one without changing that."""
    sizes = zip(reversed(shape), reversed(onto), strict=False)
    return len(shape) <= len(onto) and all(
        size in (1, other) or not isinstance(other, int) for size, other in sizes
    )


def _dtype(x: ir.Value) -> ir.DataType:
    assert x.dtype is not None, "the prediction is a float"  # noqa: S101
    return x.dtype


def typed(value: ir.Value) -> str:
    """The name, type and shape of a value, for messages."""
    return f"{value.name!r} ({type_text(value)})"
