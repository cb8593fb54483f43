"""Reading a node of TensorFlow's: its attributes and inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from bngrad.graph.nodes import known_rank, raise_refusals
from bngrad.passes.imports.tensorflow.lost_reserves import (
    GRADIENTS,
    has_lost_attributes,
    lost_is_training,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

FORWARDS = {"FusedBatchNorm": 5, "FusedBatchNormV2": 5, "FusedBatchNormV3": 6}
"""The forward ops, and how many outputs each has."""

ATTRIBUTES: dict[str, tuple[ir.AttributeType, Any]] = {
    "data_format": (ir.AttributeType.STRING, "NHWC"),
    "is_training": (ir.AttributeType.INT, 1),
    "epsilon": (ir.AttributeType.FLOAT, 1e-4),
    "exponential_avg_factor": (ir.AttributeType.FLOAT, 1.0),
}
"""The attributes with their types and defaults."""

_ONNX_EPSILON = 1e-5
"""The default of BatchNormalization, which a renamed node has."""

_GRADIENT_INPUTS = ("y_backprop", "x", "scale", "reserve_space_1", "reserve_space_2", "reserve_space_3")
_FORWARD_INPUTS = ("x", "scale", "offset", "mean", "variance")


def is_training(node: ir.Node) -> bool:
    """Whether the statistics are functions of x."""
    return bool(lost_is_training(node) if has_lost_attributes(node) else read_attribute(node, "is_training"))


def epsilon(node: ir.Node) -> float:
    """What is added to the variance."""
    if has_lost_attributes(node) and "epsilon" not in node.attributes:
        return _ONNX_EPSILON
    return float(read_attribute(node, "epsilon"))


def averaging_factor(node: ir.Node) -> float:
    """The weight of the batch in the running averages; if it was lost and matters, the node was refused."""
    return float(read_attribute(node, "exponential_avg_factor"))


def keeps_statistics(node: ir.Node) -> bool:
    """Whether a forward node averages: with a factor of 1, the default, it returns the statistics of the batch."""
    return bool(read_attribute(node, "exponential_avg_factor") != 1.0)


def channels_last(node: ir.Node) -> bool:
    """Whether C is the last dimension of the data, not the one behind N."""
    return not has_lost_attributes(node) and str(read_attribute(node, "data_format")).endswith("C")


def data_indices(node: ir.Node) -> tuple[int, ...]:
    """Which inputs have x's shape."""
    return (1, 0) if node.op_type in GRADIENTS else (0,)


def read_parameters(node: ir.Node) -> dict[str, ir.Value | None]:
    """The inputs that have C elements, by TensorFlow's names; without those that are not read."""
    named = dict(zip(input_names(node), node.inputs, strict=False))
    unread = {"y_backprop", "x", "reserve_space_3"}
    if node.op_type not in GRADIENTS and is_training(node) and averaging_factor(node) == 1.0:
        unread |= {"mean", "variance"}
    return {name: value for name, value in named.items() if name not in unread}


def read_inputs(node: ir.Node) -> list[ir.Value]:
    """The five inputs that every op of the family has; the sixth of a gradient is never read.

    Raises:
        UnsupportedNodeError: One of them was the reserve of a forward node, which nothing makes any more.
    """
    inputs = [value for value in node.inputs[:5] if value is not None]
    if len(inputs) < 5:
        raise_refusals([(node, "it reads cuDNN's reserve as a tensor")])
    return inputs


def data_rank(node: ir.Node) -> int | None:
    """The rank of x; None where nothing tells it."""
    return known_rank([*(node.inputs[i] for i in data_indices(node)), node.outputs[0]])


def is_used(value: ir.Value, *, but_by: Sequence[tuple[ir.Node, int]] = ()) -> bool:
    """Whether anything takes a value, but for some inputs of nodes."""
    return value.is_graph_output() or any(use not in but_by for use in value.uses())


def input_names(node: ir.Node) -> tuple[str, ...]:
    """TensorFlow's names of all inputs."""
    return _GRADIENT_INPUTS if node.op_type in GRADIENTS else _FORWARD_INPUTS


def read_attribute(node: ir.Node, name: str) -> Any:  # noqa: ANN401
    """The value of one of `ATTRIBUTES`, or its default."""
    attribute = node.attributes.get(name)
    return ATTRIBUTES[name][1] if attribute is None else attribute.value
