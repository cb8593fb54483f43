"""The class labels and other indices among the data of a training step.

ONNX counts a negative index from the end, and so trains on a wrong class without an error; on some devices an
index beyond the end is not refused either. Labels are data as they are, or values that the
model computes from data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bngrad.errors import InputError
from bngrad.graph.name_messages import listed
from bngrad.graph.node_reader import constant_of, known_integers, read_attribute
from bngrad.graph.nodes import describe
from bngrad.opset.known_shapes import known_shape
from bngrad.passes.workarounds.present_keys import remove_unused_nodes
from bngrad.training.label_flow import Followed, follow, sources
from bngrad.training.step_info import LabelRange

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import onnx_ir as ir
    from numpy.typing import NDArray

    from bngrad.opset.known_shapes import KnownShape

    Array = NDArray[Any]

_HALF = 2**31
"""More classes than any model has, and less than a negative label without its sign."""

_LOSSES = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")


@dataclass(frozen=True)
class ClassLabels:
    """The values that some labels or indices may have."""

    range: LabelRange
    scores: str | None = None
    """The value with a score for each class in dimension 1, if a loss reads the labels in that shape."""
    of_loss: bool = False
    """True if a loss reads them; they are whole numbers then."""

    @property
    def is_data(self) -> bool:
        """True if they are a data input as it is, to which the range applies; False if they are computed."""
        return self.range.inputs == (self.range.value,)

    def require_in_range(self, labels: Array) -> None:
        """Checks that every label is the number of a class, or the ignored label.

        Raises:
            InputError: One is not.
        """
        low, high, ignored = self.range.minimum, self.range.maximum, self.range.ignored
        if labels.dtype.kind == "i" and low == 0 and labels.itemsize >= 4:
            # Without a sign a negative label is the largest.
            highest = np.maximum.reduce(labels.view(f"u{labels.itemsize}"), axis=None, initial=0)
            if highest <= (_HALF if high is None else high):
                return
        whole = np.trunc(labels) if labels.dtype.kind == "f" else labels
        wrong = ~(whole >= low)  # also for NaN
        if high is not None:
            wrong |= whole > high
        if self.of_loss:
            wrong |= whole != labels
        if ignored is not None:
            wrong &= labels != ignored
        if wrong.any():
            raise InputError(self._message(labels[wrong][0]))

    def _message(self, label: Any) -> str:  # noqa: ANN401 - a number of NumPy
        low, high, ignored = self.range.minimum, self.range.maximum, self.range.ignored
        limit = f"{low} or more" if high is None else f"{low} to {high}"
        also = "" if ignored is None else f", or {ignored} to leave a sample out"
        what = "label" if self.of_loss else "index"
        if self.is_data:
            return f"{self.range.value!r} has the {what} {label}; expected {limit}{also}"
        return (
            f"the data {listed(self.range.inputs)} make the {what} {label}, which the model computes as "
            f"{self.range.value!r}; expected {limit}{also}"
        )

    def correct(self, labels: Array, scores: Array) -> tuple[int, int]:
        """Returns how many labels have the highest score, and how many labels there are."""
        ignored = self.range.ignored
        counted = np.ones(labels.shape, bool) if ignored is None else labels != ignored
        hits = scores.argmax(axis=1) == labels - self.range.minimum
        return int((hits & counted).sum()), int(counted.sum())


def find_class_labels(evaluation: ir.Model, data: Collection[str], loss: str) -> list[ClassLabels]:
    """Returns the labels and the other indices that the loss of a model depends on.

    Args:
        evaluation: The evaluation graph of a training step, with its types.
        data: The names of the data inputs.
        loss: The name of the loss.
    """
    graph = evaluation.graph
    inputs = [value for value in graph.inputs if value.name in data]
    nodes = _nodes_of([value for value in graph.outputs if value.name == loss])
    results: dict[ClassLabels, None] = {}
    for node in graph:
        if node in nodes and node.domain == "":
            for labels, size, scores in _read_by(node):
                if class_labels := _checked(node, labels, size, scores, inputs):
                    results[class_labels] = None
    return list(results)


def program_of(evaluation: ir.Model, labels: Collection[ClassLabels]) -> ir.Model | None:
    """Returns a model that computes the labels that are not data inputs; None if all are."""
    names = {entry.range.value for entry in labels if entry.range.unchecked is None and not entry.is_data}
    if not names:
        return None
    model = evaluation.clone()
    graph = model.graph
    values = {str(value.name): value for node in graph for value in node.outputs}
    graph.outputs[:] = [values[name] for name in sorted(names)]
    remove_unused_nodes(model)
    inputs = {name for entry in labels for name in entry.range.inputs}
    graph.inputs[:] = [value for value in graph.inputs if value.name in inputs]
    model.metadata_props.clear()
    return model


def _nodes_of(values: list[ir.Value]) -> set[ir.Node]:
    """The nodes of the main graph that values depend on."""
    nodes: set[ir.Node] = set()
    waiting = [value.producer() for value in values]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            waiting += [value.producer() for value in node.inputs if value is not None]
    return nodes


def _read_by(node: ir.Node) -> Iterator[tuple[ir.Value | None, int | str | None, ir.Value | None]]:
    """Yields the inputs that a node reads as indices, their number of choices, and the scores of a loss."""
    inputs = dict(enumerate(node.inputs))
    shape = known_shape(inputs.get(0))
    if node.op_type in _LOSSES:
        yield inputs.get(1), _size(shape, 1), inputs.get(0)
    elif node.op_type in ("Gather", "GatherElements", "ScatterElements", "Scatter"):
        yield inputs.get(1), _size(shape, int(read_attribute(node, "axis", 0))), None
    elif node.op_type in ("GatherND", "ScatterND"):
        first = int(read_attribute(node, "batch_dims", 0))
        for number, column in enumerate(_columns(inputs.get(1))):
            yield column, _size(shape, first + number), None
    elif node.op_type == "OneHot":
        depth = constant_of(inputs.get(1))
        yield inputs.get(0), int(depth.item()) if depth is not None and depth.size == 1 else None, None
    elif node.op_type == "Slice" and len(node.inputs) > 1:  # before opset 10 the bounds are attributes
        axes, steps = known_integers(node, 3), known_integers(node, 4)
        forward = inputs.get(4) is None or (steps is not None and min(steps, default=1) > 0)
        for index, more in ((1, 0), (2, 1)) if forward else ((1, 0),):  # an end is one more than the last index
            columns = _columns(inputs.get(index))
            for number, column in enumerate(columns):
                axis = number if inputs.get(3) is None else axes[number] if axes and number < len(axes) else None
                size = None if axis is None or _size(known_shape(column), 0) != 1 else _size(shape, axis)
                yield column, size + more if isinstance(size, int) else None, None


def _size(shape: KnownShape | None, axis: int) -> int | str | None:
    return shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None


def _columns(indices: ir.Value | None) -> list[ir.Value]:
    """The values whose elements are the last dimension of indices, one each; the indices if they are unknown."""
    shape = known_shape(indices)
    node = None if indices is None else indices.producer()
    if node is not None and shape and node.op_type == "Concat" and node.domain == "":
        axis = int(read_attribute(node, "axis", 0))
        parts = [value for value in node.inputs if value is not None]
        if axis in (-1, len(shape) - 1) and all(_size(known_shape(part), -1) == 1 for part in parts):
            return parts
    # Columns that are not separate values have no upper limit: only the least of the sizes would be one.
    return [] if indices is None else [indices]


def _has_one_range(followed: Followed, high: int | None, leaves_out: int | None) -> bool:
    """Tests whether the elements of an input are in one range with at most one exception."""
    exceptions = {*followed.ignored, *([] if leaves_out is None else [leaves_out + followed.offset])}
    return len(exceptions) <= 1 and (high is None or followed.replacement <= high)


def _checked(
    node: ir.Node, labels: ir.Value | None, size: int | str | None, scores: ir.Value | None, data: list[ir.Value]
) -> ClassLabels | None:
    """Returns the values that the labels read by a node may have; None if they do not come from data."""
    if labels is None:
        return None
    inputs, obstacle = sources(labels, data)
    if not inputs:
        return None
    ignored = node.attributes.get("ignore_index") if scores is not None else None
    leaves_out = None if ignored is None else ignored.as_int()
    low, high = 0, size - 1 if isinstance(size, int) else None
    if node.op_type in ("GatherND", "ScatterND") and _size(known_shape(labels), -1) != 1:
        high = None
    followed = follow(labels)
    if followed is not None and followed.input in data and _has_one_range(followed, high, leaves_out):
        left_out = next(iter(followed.ignored), None)
        if left_out is None and leaves_out is not None:
            left_out = leaves_out + followed.offset
        name, moved = str(followed.input.name), followed.offset
        last = None if high is None else high + moved
        of = LabelRange((name,), name, low + moved, last, left_out)
        rank = None if followed.input.shape is None else len(followed.input.shape)
        shown = scores if rank is not None and rank == len(known_shape(scores) or ()) - 1 else None
        return ClassLabels(of, None if shown is None else str(shown.name), scores is not None)
    names = tuple(str(value.name) for value in inputs)
    if obstacle is not None:
        if scores is None and all(value.dtype is None or value.dtype.is_floating_point() for value in inputs):
            return None  # positions that the model computes from its data
        reason = f"{labels.name!r}, which {describe(node)} reads as indices, is not checked: {obstacle}"
        return ClassLabels(
            LabelRange(names, str(labels.name), low, high, leaves_out, reason), None, scores is not None
        )
    return ClassLabels(
        LabelRange(names, str(labels.name), low, high, leaves_out),
        None if scores is None else str(scores.name),
        scores is not None,
    )
