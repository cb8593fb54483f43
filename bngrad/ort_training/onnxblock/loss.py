"""Losses as blocks. Each adds its target as a new graph input, unless the model has a value of that name.

The reduction ``none`` gives a loss for each element, to be reduced by other blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from bngrad.ort_training.errors import OrtTrainingError
from bngrad.ort_training.onnxblock import _graph_utils, blocks
from bngrad.ort_training.onnxblock.block import Block

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

_REDUCTIONS: dict[str, type[blocks.ReduceMean | blocks.ReduceSum] | None] = {
    "mean": blocks.ReduceMean,
    "sum": blocks.ReduceSum,
    "none": None,
}


_SOFTPLUS_TYPES = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
"""The types for which ONNX Runtime has a Softplus; it computes that of float16 in float."""


class _Loss(Block):
    """The common base of the losses.

    Args:
        reduction: ``mean``, ``sum`` or ``none``.

    Raises:
        OrtTrainingError: The reduction is another.
    """

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in _REDUCTIONS:
            raise OrtTrainingError(
                f"reduction {reduction!r} is not supported; expected one of {', '.join(_REDUCTIONS)}"
            )
        self._reduction = reduction

    def _reduce(self, loss: str) -> str:
        reduce = _REDUCTIONS[self._reduction]
        return loss if reduce is None else str(reduce(keepdims=False)(loss))

    def _target(self, like: str, name: str) -> str:
        if not _graph_utils.node_arg_exists(self.base, name):
            blocks.InputLike(like)(name)
        return name

    def _difference(self, name: str, target: str) -> str:
        return str(blocks.Sub()(name, self._target(name, target)))


class MSELoss(_Loss):
    """The reduction of (input - target)^2.

    Args:
        reduction: ``mean``, ``sum`` or ``none``.

    Raises:
        OrtTrainingError: The reduction is another.
    """

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Appends the loss; the target has the type and shape of the input."""
        return self._reduce(blocks.Pow(2.0)(self._difference(loss_input_name, target_name)))


class L1Loss(_Loss):
    """The reduction of |input - target|.

    Args:
        reduction: ``mean``, ``sum`` or ``none``.

    Raises:
        OrtTrainingError: The reduction is another.
    """

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Appends the loss; the target has the type and shape of the input."""
        return self._reduce(blocks.Abs()(self._difference(loss_input_name, target_name)))


class CrossEntropyLoss(_Loss):
    """The reduction of weight[label] (logsumexp(scores) - scores[label]), with classes on axis 1.

    The mean is that of torch: the sum of the losses divided by the sum of the weights of their labels.

    Args:
        weight: A weight for each class, of shape [C].
        reduction: ``mean``, ``sum`` or ``none``.
        ignore_index: A label whose loss is 0 and that does not count in the mean.

    Raises:
        OrtTrainingError: The reduction is another, or the weights have another rank.
    """

    def __init__(
        self, weight: ArrayLike | None = None, reduction: str = "mean", ignore_index: int | None = None
    ) -> None:
        super().__init__(reduction)
        self._weight = None if weight is None else np.asarray(weight)
        if self._weight is not None and self._weight.ndim != 1:
            raise OrtTrainingError(
                f"weight has shape {list(self._weight.shape)}; expected [C], one for each class"
            )
        self._ignore_index = ignore_index

    def build(self, scores_input_name: str, labels_name: str = "labels") -> str:
        """Appends the loss of scores [N, C, ...]; the labels are int64 of shape [N, ...].

        Raises:
            OrtTrainingLookupError: There are no such scores, or their type is unknown.
            OrtTrainingError: The scores have fewer than 2 dimensions, or not as many classes as there are weights.
        """
        info = _graph_utils.value_info(self.base, scores_input_name)
        weight_name = _graph_utils.generate_graph_name("celoss.weight")
        weights = []
        if self._weight is not None:
            self._require_classes(info)
            self.base.graph.initializer.append(onnx.numpy_helper.from_array(_as(self._weight, info), weight_name))
            weights = [weight_name]
        if not _graph_utils.node_arg_exists(self.base, labels_name):
            self.base.graph.input.append(_labels(info, labels_name))
        loss, log_prob, name = map(
            _graph_utils.generate_graph_name, ("loss", "log_prob", "SoftmaxCrossEntropyLoss")
        )
        attributes: dict[str, Any] = {"reduction": self._reduction}
        if self._ignore_index is not None:
            attributes["ignore_index"] = int(self._ignore_index)
        node = onnx.helper.make_node(
            "SoftmaxCrossEntropyLoss",
            [scores_input_name, labels_name, *weights],
            [loss, log_prob],
            name,
            **attributes,
        )
        self.base.graph.node.append(node)
        return loss

    def _require_classes(self, scores: onnx.ValueInfoProto) -> None:
        shape = scores.type.tensor_type.shape.dim
        if self._weight is None or len(shape) < 2 or not shape[1].HasField("dim_value"):
            return
        if shape[1].dim_value != len(self._weight):
            raise OrtTrainingError(
                f"weight has {len(self._weight)} elements, but {scores.name!r} has {shape[1].dim_value} classes "
                "on axis 1; expected one for each"
            )


class BCEWithLogitsLoss(_Loss):
    """The reduction of weight (pos_weight target softplus(-x) + (1 - target) softplus(x)) of logits x.

    This is -log(sigmoid(x)) and -log(1 - sigmoid(x)) in a form that does not overflow.

    Args:
        weight: A factor of the losses, which broadcasts to their shape.
        reduction: ``mean``, ``sum`` or ``none``.
        pos_weight: A factor of the losses of positive targets, which broadcasts to their shape.

    Raises:
        OrtTrainingError: The reduction is another.
    """

    def __init__(
        self, weight: ArrayLike | None = None, reduction: str = "mean", pos_weight: ArrayLike | None = None
    ) -> None:
        super().__init__(reduction)
        self._weight = None if weight is None else np.asarray(weight)
        self._pos_weight = None if pos_weight is None else np.asarray(pos_weight)

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Appends the loss; the target has the type and shape of the logits.

        Raises:
            OrtTrainingLookupError: There are no such logits, or their type is unknown.
            OrtTrainingError: They are neither float nor float16.
        """
        info = _graph_utils.value_info(self.base, loss_input_name)
        if (dtype := info.type.tensor_type.elem_type) not in _SOFTPLUS_TYPES:
            raise OrtTrainingError(
                f"logits {loss_input_name!r} are {onnx.TensorProto.DataType.Name(dtype).lower()}, for which ONNX "
                "Runtime has no Softplus; expected float or float16: cast them with blocks.Cast"
            )

        def constant(token: str, value: ArrayLike) -> str:
            return _graph_utils.append_initializer(self.base, token, _as(np.asarray(value), info))

        pos_weight = None if self._pos_weight is None else constant("bceloss.pos_weight", self._pos_weight)
        weight = None if self._weight is None else constant("bceloss.weight", self._weight)
        unit = constant("bceloss.one", [1.0])
        # 1.19.2 takes as many for its form of the loss.
        _graph_utils.skip_names(5 + (pos_weight is None) + (weight is None))
        target = self._target(loss_input_name, target_name)
        mul = blocks.Mul()

        positive = mul(_softplus(self.base, blocks.Neg()(loss_input_name)), target)
        if pos_weight is not None:
            positive = mul(positive, pos_weight)
        negative = mul(_softplus(self.base, loss_input_name), blocks.Sub()(unit, target))
        loss = blocks.Add()(positive, negative)
        return self._reduce(loss if weight is None else mul(weight, loss))


def _softplus(model: onnx.ModelProto, x: str) -> str:
    return _graph_utils.append_node(model, "Softplus", [x])


def _labels(scores: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    """The type of labels: int64, without the axis of the classes."""
    shape = scores.type.tensor_type.shape
    if len(shape.dim) < 2:
        raise OrtTrainingError(
            f"scores {scores.name!r} have {len(shape.dim)} known dimensions; expected [N, C, ...], with classes "
            "on axis 1"
        )
    labels = onnx.ValueInfoProto()
    labels.CopyFrom(scores)
    labels.name = name
    labels.type.tensor_type.elem_type = onnx.TensorProto.INT64
    del labels.type.tensor_type.shape.dim[1]
    return labels


def _as(value: NDArray[Any], like: onnx.ValueInfoProto) -> NDArray[Any]:
    """A constant in the type of a value."""
    return value.astype(onnx.helper.tensor_dtype_to_np_dtype(like.type.tensor_type.elem_type))
