"""Losses and softmaxes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import onnx

if TYPE_CHECKING:
    from gradient_fuzz.sketch import Sketch, Value


def softmax(b: Sketch, op_type: str) -> list[Value]:
    x = b.any(1)
    if b.singular and b.opset >= 13 and op_type == "Softmax":
        masked = np.where(b.rng.random(x.shape) < 0.3, -np.inf, 0.0)
        # Added directly: the sketch refuses infinities as outputs of a node.
        bias = b.constant(np.where(np.isfinite(masked), 0.0, -25.0), b.element)
        x = b.one("Add", x, bias)
    default = x.rank > 1 or b.opset >= 13
    return b.emit(op_type, [x], axis=b.maybe(b.axis(x.rank), 0.7 if default else 1.0))


def labelled(b: Sketch) -> tuple[Value, list[Value | None], dict[str, object]]:
    """Scores, [labels, weights], and the attributes."""
    x = b.any(2)
    classes = x.shape[1]
    shape = (x.shape[0], *x.shape[2:])
    labels = b.rng.integers(0, max(classes, 1), shape)
    ignore = None
    if b.draw.chance(0.4):
        ignore = b.draw.choice([-1, 0, classes - 1, 255])
        labels = np.where(b.rng.random(shape) < 0.3, ignore, labels)
        if np.all(labels == ignore) and labels.size:
            labels.flat[0] = (ignore + 1) % max(classes, 1) if 0 <= ignore < classes else 0
    element = b.draw.choice([onnx.TensorProto.INT64, onnx.TensorProto.INT32])
    weights = b.of_shape((classes,), positive=True) if b.draw.chance(0.5) else None
    reduction = b.maybe(b.draw.choice(["mean", "sum", "none"]), 0.8)
    return x, [b.constant(labels, element), weights], {"reduction": reduction, "ignore_index": ignore}


def cross_entropy(b: Sketch) -> list[Value]:
    x, others, attributes = labelled(b)
    outputs = [True, True] if b.draw.chance(0.4) else 1
    return b.emit("SoftmaxCrossEntropyLoss", [x, *others], outputs, **attributes)


def negative_log_likelihood(b: Sketch) -> list[Value]:
    x, others, attributes = labelled(b)
    return b.emit("NegativeLogLikelihoodLoss", [x, *others], **attributes)


ENTRIES = {
    ("", "LogSoftmax"): partial(softmax, op_type="LogSoftmax"),
    ("", "NegativeLogLikelihoodLoss"): negative_log_likelihood,
    ("", "Softmax"): partial(softmax, op_type="Softmax"),
    ("", "SoftmaxCrossEntropyLoss"): cross_entropy,
}
