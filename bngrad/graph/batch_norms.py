"""Checks that batch-norm nodes of all systems share: inputs, types, ranks and parameter shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.errors import ModelError
from bngrad.graph.nodes import describe, known_rank, op_nodes
from bngrad.opset.axes import MAX_RANK
from bngrad.opset.known_shapes import shape_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SUPPORTED_DTYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
"""The types of data; a parameter or statistic has the type of the data, or is float."""

SIXTEEN_BITS = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)

PER_SAMPLE = "bngrad.per_sample"
"""The key in a node's ``meta`` for a batch-norm gradient that is one of an instance or group norm: each sample has
its own statistics."""

FROZEN = "bngrad.frozen"
"""The key in the metadata of a batch norm that its user froze, whatever mode PyTorch's exporter recorded."""

GHOST = "bngrad.ghost"
"""The key in the metadata of a batch norm for the number of samples that get statistics of their own."""

_OLD_TRAINING_OUTPUTS = 5


def is_training_batch_norm(node: ir.Node) -> bool:
    """Returns whether a node is ONNX's BatchNormalization in training mode.

    It has training_mode = 1; below opset 14 it has five outputs, and below 7 no is_test = 1.
    """
    if (node.domain, node.op_type) != ("", "BatchNormalization"):
        return False
    training_mode, is_test = node.attributes.get("training_mode"), node.attributes.get("is_test")
    if training_mode is not None:
        return bool(training_mode.value == 1)
    return len(node.outputs) == _OLD_TRAINING_OUTPUTS and (is_test is None or is_test.value == 0)


def says_both_modes(node: ir.Node) -> bool:
    """Returns whether a BatchNormalization below opset 7 has is_test = 0, for training, but only one output."""
    is_test = node.attributes.get("is_test")
    return is_test is not None and is_test.value == 0 and len(node.outputs) < _OLD_TRAINING_OUTPUTS


def is_per_element(node: ir.Node) -> bool:
    """Returns whether a BatchNormalization below opset 9 has spatial = 0: each element has its statistics."""
    spatial = node.attributes.get("spatial")
    return spatial is not None and spatial.value == 0


def refusal(
    node: ir.Node, *, inputs: int, data: Sequence[int], minimum_rank: int, layout: str = "NC..."
) -> str | None:
    """Returns the reason why a batch-norm node cannot become an op of ``bngrad``; None if it can.

    Args:
        node: The node.
        inputs: The number of inputs that it must have, all present.
        data: The indices of the inputs of X's shape.
        minimum_rank: The lowest rank that the op accepts.
        layout: The layout of the data, for the message.
    """
    present = [value for value in node.inputs if value is not None]
    if len(present) != inputs or len(node.inputs) != inputs:
        count = str(len(present)) if len(present) == len(node.inputs) else f"{len(present)} of {len(node.inputs)}"
        return f"it has {count} inputs; expected {inputs}, all present"
    reason = type_refusal([node.inputs[i] for i in data], [v for i, v in enumerate(node.inputs) if i not in data])
    if reason:
        return reason
    rank = known_rank(node.inputs[i] for i in data)
    if rank is not None and not minimum_rank <= rank <= MAX_RANK:
        return f"its X has rank {rank}; expected {minimum_rank} to {MAX_RANK} ({layout})"
    return None


def parameter_refusal(node: ir.Node, *, data: Sequence[int]) -> str | None:
    """Returns the reason why shapes of parameters do not match the data; None if they match or are unknown.

    Args:
        node: The node.
        data: The indices of the inputs that have X's shape, in which dimension 1 is the channels; the others are
            parameters or statistics.
    """
    shapes = [
        value.shape for index in data if (value := node.inputs[index]) is not None and value.shape is not None
    ]
    channels: object = None
    if shapes:
        channels = shapes[0][1] if len(shapes[0]) > 1 else 1
    expected = f"[{channels}]" if isinstance(channels, int) else "one dimension, the channels of its X"
    for index, value in enumerate(node.inputs):
        if index in data or value is None or value.shape is None:
            continue
        wrong = len(value.shape) != 1 or (
            isinstance(channels, int) and isinstance(value.shape[0], int) and value.shape[0] != channels
        )
        if wrong:
            return f"its input {value.name!r} has shape {shape_text(value.shape)}; expected {expected}"
    return None


def require_parameters(model: ir.Model) -> None:
    """Refuses a BatchNormalization whose parameters do not have shape [C].

    Raises:
        ModelError: There is one; the message names it.
    """
    for node in op_nodes(model):
        if (node.domain, node.op_type) == ("", "BatchNormalization") and node.inputs:
            reason = parameter_refusal(node, data=(0,))
            if reason:
                raise ModelError(f"{describe(node)} is not valid: {reason}")


def type_refusal(data: Iterable[ir.Value | None], parameters: Iterable[ir.Value | None]) -> str | None:
    """Returns the reason why an op of ``bngrad`` cannot read some types; None if it can, or they are unknown.

    Args:
        data: The values of X's type.
        parameters: The values of X's type or float, as in ONNX's BatchNormalization.
    """
    data_type: ir.DataType | None = None
    for value in data:
        if value is None or value.dtype is None:
            continue
        if value.dtype not in SUPPORTED_DTYPES:
            return _wrong_type(value, "one of " + ", ".join(dtype.name.lower() for dtype in SUPPORTED_DTYPES))
        if data_type not in (None, value.dtype):
            return _wrong_type(value, f"{data_type.name.lower()}, the type of the data before it")
        data_type = value.dtype
    allowed = dict.fromkeys((ir.DataType.FLOAT, data_type) if data_type is not None else SUPPORTED_DTYPES)
    for value in parameters:
        if value is not None and value.dtype not in (None, *allowed):
            return _wrong_type(value, " or ".join(dtype.name.lower() for dtype in allowed))
    return None


def _wrong_type(value: ir.Value, expected: str) -> str:
    got = value.dtype.name.lower() if value.dtype is not None else "of no type"
    return f"its input {value.name!r} is {got}; expected {expected}"
