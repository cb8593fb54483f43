"""TensorFlow's fused losses, which have the gradient as their second output.

::

    SoftmaxCrossEntropyWithLogits(features [N, C], labels [N, C]) -> loss [N], backprop [N, C]
        loss = -sum over C of labels log_softmax(features)          backprop = softmax(features) - labels
    SparseSoftmaxCrossEntropyWithLogits(features [N, C], labels [N]) -> loss [N], backprop [N, C]
        the same with labels as one-hot vectors; a label that is not in [0, C) is an error of the run
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.batch_norms import SIXTEEN_BITS
from bngrad.graph.node_reader import dtype_of, like
from bngrad.passes.imports.tensorflow.rule import Rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.passes.lower.site import Site

_NO_CLASS = 10**9
"""Subtracted from a negative label, which ONNX's ops would count from the last class: it is out of bounds then."""


def refusal(node: ir.Node) -> str | None:
    """Returns the reason why a loss cannot be rewritten; None if it can. Its features have two dimensions."""
    for value, rank in zip(node.inputs, (2, 1 if node.op_type.startswith("Sparse") else 2), strict=True):
        if value is not None and value.shape is not None and len(value.shape) != rank:
            return f"its input {value.name!r} has {len(value.shape)} dimensions; expected {rank}"
    return None


def softmax_cross_entropy(site: Site) -> Sequence[ir.Value]:
    """Inserts the nodes for labels as distributions."""
    labels = site.x(1)
    log_prob = _log_softmax(site)
    loss = site.op("Neg", site.op("ReduceSum", site.op("Mul", labels, log_prob), site.int64([1]), keepdims=0))
    return [loss, site.op("Sub", site.op("Exp", log_prob), labels)]


def sparse_softmax_cross_entropy(site: Site) -> Sequence[ir.Value]:
    """Inserts the nodes for labels as class numbers."""
    log_prob, labels = _log_softmax(site), site.cast(site.x(1), ir.DataType.INT64)
    none = site.op("Sub", labels, site.int64(_NO_CLASS))
    labels = site.op("Where", site.op("Less", labels, site.int64(0)), none, labels)
    axis = site.int64([1])
    classes = site.op("Unsqueeze", labels, axis)
    picked = site.op("Squeeze", site.op("GatherElements", log_prob, classes, axis=1), axis)
    minus_one = site.op("Expand", like(site, -1, site.x(0)), site.op("Shape", classes))
    # ScatterElements does not add in 16 bits.
    narrow = dtype_of(site.x(0)) in SIXTEEN_BITS
    operands = [site.op("Exp", log_prob), minus_one]
    if narrow:
        operands = [site.op("Cast", operand, to=int(ir.DataType.FLOAT)) for operand in operands]
    backprop = site.op("ScatterElements", operands[0], classes, operands[1], axis=1, reduction="add")
    return [site.op("Neg", picked), site.op("CastLike", backprop, site.x(0)) if narrow else backprop]


def _log_softmax(site: Site) -> ir.Value:
    result = site.op("LogSoftmax", site.x(0), axis=1)
    result.dtype, result.shape = dtype_of(site.x(0)), site.x(0).shape
    return result


_INPUTS = ("features", "labels")
RULES = {
    "SoftmaxCrossEntropyWithLogits": Rule(softmax_cross_entropy, refusal, inputs=_INPUTS),
    "SparseSoftmaxCrossEntropyWithLogits": Rule(sparse_softmax_cross_entropy, refusal, inputs=_INPUTS),
}
