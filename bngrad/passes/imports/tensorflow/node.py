"""Reads the attributes and inputs of TensorFlow's nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from bngrad.graph.nodes import known_rank, raise_refusals
from bngrad.passes.imports.tensorflow.lost_attributes import (
    GRADIENTS,
    has_lost_attributes,
    recovered_is_training,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

FORWARDS = {"FusedBatchNorm": 5, "FusedBatchNormV2": 5, "FusedBatchNormV3": 6}
"""The forward ops and their numbers of outputs."""

ATTRIBUTES: dict[str, tuple[ir.AttributeType, Any]] = {
    "data_format": (ir.AttributeType.STRING, "NHWC"),
    "is_training": (ir.AttributeType.INT, 1),
    "epsilon": (ir.AttributeType.FLOAT, 1e-4),
    "exponential_avg_factor": (ir.AttributeType.FLOAT, 1.0),
}
"""The types and defaults of the attributes."""

_ONNX_EPSILON = 1e-5
"""The default of ONNX's BatchNormalization, which applies to nodes with lost attributes."""

_GRADIENT_INPUTS = ("y_backprop", "x", "scale", "reserve_space_1", "reserve_space_2", "reserve_space_3")
_FORWARD_INPUTS = ("x", "scale", "offset", "mean", "variance")


def is_training(node: ir.Node) -> bool:
    """Whether a node is in training mode, so that the statistics are computed from x."""
    return bool(recovered_is_training(node) if has_lost_attributes(node) else read_attribute(node, "is_training"))


def epsilon(node: ir.Node) -> float:
    """Returns the number that is added to the variance."""
    if has_lost_attributes(node) and "epsilon" not in node.attributes:
        return _ONNX_EPSILON
    return float(read_attribute(node, "epsilon"))


def averaging_factor(node: ir.Node) -> float:
    """Returns the weight of the batch in the running averages, in a node that was not refused."""
    return float(read_attribute(node, "exponential_avg_factor"))


def keeps_statistics(node: ir.Node) -> bool:
    """Whether a forward node computes running averages; with a factor of 1 it returns the batch's statistics."""
    return bool(read_attribute(node, "exponential_avg_factor") != 1.0)


def channels_last(node: ir.Node) -> bool:
    """Whether the channels are the last dimension of the data, and not dimension 1."""
    return not has_lost_attributes(node) and str(read_attribute(node, "data_format")).endswith("C")


def data_indices(node: ir.Node) -> tuple[int, ...]:
    """Returns the indices of the inputs that have x's shape."""
    return (1, 0) if node.op_type in GRADIENTS else (0,)


def read_parameters(node: ir.Node) -> dict[str, ir.Value | None]:
    """Returns the inputs of shape [C] that the op reads, by their names in TensorFlow."""
    named = dict(zip(input_names(node), node.inputs, strict=False))
    unread = {"y_backprop", "x", "reserve_space_3"}
    if node.op_type not in GRADIENTS and is_training(node) and averaging_factor(node) == 1.0:
        unread |= {"mean", "variance"}
    return {name: value for name, value in named.items() if name not in unread}


def read_inputs(node: ir.Node) -> list[ir.Value]:
    """Returns the five inputs that all these ops have; the sixth input of a gradient is never read.

    Raises:
        UnsupportedNodeError: One of them was reserve_space_3 of a forward node, which no longer exists.
    """
    inputs = [value for value in node.inputs[:5] if value is not None]
    if len(inputs) < 5:
        raise_refusals([(node, "it reads reserve_space_3, cuDNN's internal data, as a tensor")])
    return inputs


def data_rank(node: ir.Node) -> int | None:
    """Returns the rank of x; None if it is unknown."""
    return known_rank([*(node.inputs[i] for i in data_indices(node)), node.outputs[0]])


def is_used(value: ir.Value, *, except_by: Sequence[tuple[ir.Node, int]] = ()) -> bool:
    """Whether a value is a graph output or an input of a node, apart from the given uses."""
    return value.is_graph_output() or any(use not in except_by for use in value.uses())


def input_names(node: ir.Node) -> tuple[str, ...]:
    """Returns TensorFlow's names of all inputs."""
    return _GRADIENT_INPUTS if node.op_type in GRADIENTS else _FORWARD_INPUTS


def read_attribute(node: ir.Node, name: str) -> Any:  # noqa: ANN401
    """Returns the value of one of `ATTRIBUTES`, or its default."""
    attribute = node.attributes.get(name)
    return ATTRIBUTES[name][1] if attribute is None else attribute.value
