"""The class labels among the data of a training step, and the accuracy with respect to them.

ONNX Runtime takes a negative label for one counted from the end, and so trains on a wrong class without an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from bngrad.errors import InputError
from bngrad.graph.same_values import SAME_VALUES, origin
from bngrad.opset.known_shapes import known_shape
from bngrad.passes.prepare.infer_types import InferTypesPass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from bngrad.opset.known_shapes import KnownShape

    Array = NDArray[Any]

_HALF = 2**31
"""More classes than any model has, and less than a negative label without its sign."""

_INTEGERS = (ir.DataType.INT32, ir.DataType.INT64)

_LOSSES = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")


@dataclass(frozen=True)
class ClassLabels:
    """A data input with the labels of a loss."""

    name: str
    """The input."""
    scores: str | None
    """The value with a score for each class in dimension 1; None if there are several."""
    classes: int | None
    """The number of classes; None if it is unknown."""
    ignored: int | None
    """The label of samples that the loss leaves out."""

    def require_in_range(self, labels: Array) -> None:
        """Checks that every label is that of a class, or the one to leave out.

        Raises:
            InputError: One is not.
        """
        # Without a sign a negative label is the largest.
        highest = np.maximum.reduce(labels.view(f"u{labels.itemsize}"), axis=None, initial=0)
        if highest < (_HALF if self.classes is None else self.classes):
            return
        wrong = labels < 0
        if self.classes is not None:
            wrong |= labels >= self.classes
        if self.ignored is not None:
            wrong &= labels != self.ignored
        if wrong.any():
            limit = "0 or more" if self.classes is None else f"0 to {self.classes - 1}"
            also = "" if self.ignored is None else f", or {self.ignored} to leave a sample out"
            raise InputError(f"{self.name!r} has the label {labels[wrong][0]}; expected {limit}{also}")

    def correct(self, labels: Array, scores: Array) -> tuple[int, int]:
        """Returns how many labels have the highest score, and how many labels there are."""
        counted = np.ones(labels.shape, bool) if self.ignored is None else labels != self.ignored
        return int(((scores.argmax(axis=1) == labels) & counted).sum()), int(counted.sum())


def find_class_labels(evaluation: ir.Model) -> list[ClassLabels]:
    """Returns the labels that losses of a model read.

    Args:
        evaluation: The evaluation graph of a training step; its types are inferred.
    """
    InferTypesPass()(evaluation)
    found: dict[str, ClassLabels] = {}
    for node in evaluation.graph:
        if node.domain == "" and node.op_type in _LOSSES:
            scores, labels = node.inputs[0], _input_of(node.inputs[1])
            if scores is not None and labels is not None and labels.dtype in _INTEGERS:
                shape, ignored = known_shape(scores), node.attributes.get("ignore_index")
                classes = shape[1] if shape is not None and len(shape) > 1 else None
                one = ClassLabels(
                    str(labels.name),
                    str(scores.name) if _has_label_shape(labels, shape) else None,
                    classes if isinstance(classes, int) else None,
                    None if ignored is None else ignored.as_int(),
                )
                found[one.name] = _both(found.get(one.name, one), one)
    return list(found.values())


def _both(first: ClassLabels, second: ClassLabels) -> ClassLabels:
    """What holds for two losses that read the same labels, such as those of two heads."""
    return ClassLabels(
        first.name,
        first.scores if first.scores == second.scores else None,
        first.classes if first.classes == second.classes else None,
        first.ignored if first.ignored == second.ignored else None,
    )


def _input_of(labels: ir.Value | None) -> ir.Value | None:
    """The input that the labels of a loss are, in any type or shape; None if they are computed.

    `CrossEntropy` has Where(negative, Sub(labels, number), labels), which leaves labels of classes as they are.
    """
    node = None if labels is None else labels.producer()
    if node is not None and node.op_type == "Where":
        moved, labels = node.inputs[1:]
        of_moved = None if moved is None else moved.producer()
        if of_moved is None or of_moved.op_type != "Sub" or of_moved.inputs[0] is not labels:
            return None
    labels = None if labels is None else origin(labels, SAME_VALUES)
    return labels if labels is not None and labels.is_graph_input() else None


def _has_label_shape(labels: ir.Value, scores: KnownShape | None) -> bool:
    """Whether labels have the shape of scores without their dimension 1."""
    return scores is not None and labels.shape is not None and len(labels.shape) == len(scores) - 1


def require_labels(labels: list[ClassLabels], data: Mapping[str, Array]) -> None:
    """Checks the labels of a batch.

    Raises:
        InputError: A label is not that of a class.
    """
    for one in labels:
        one.require_in_range(data[one.name])
