"""Reads the attributes and inputs of TensorFlow's nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.nodes import known_rank, raise_refusals
from bngrad.passes.imports.foreign_node import Attribute, ForeignNode, is_parameter
from bngrad.passes.imports.tensorflow.lost_attributes import (
    GRADIENTS,
    has_lost_attributes,
    recovered_is_training,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

FORWARDS = {"FusedBatchNorm": 5, "FusedBatchNormV2": 5, "FusedBatchNormV3": 6}
"""The forward ops and their numbers of outputs."""

ATTRIBUTES = {
    "data_format": Attribute((ir.AttributeType.STRING,), "NHWC"),
    "is_training": Attribute((ir.AttributeType.INT,), 1),
    "epsilon": Attribute((ir.AttributeType.FLOAT,), 1e-4),
    "exponential_avg_factor": Attribute((ir.AttributeType.FLOAT,), 1.0),
}


def is_training(node: ir.Node) -> bool:
    """Returns whether a node is in training mode, so that the statistics are computed from x."""
    if has_lost_attributes(node):
        return bool(recovered_is_training(node))
    attribute = node.attributes.get("is_training")
    return attribute is None or bool(attribute.value)


def keeps_statistics(node: ir.Node) -> bool:
    """Returns whether a forward node computes running averages; with a factor of 1 they are those of the batch."""
    factor = node.attributes.get("exponential_avg_factor")
    return factor is not None and bool(factor.value != 1.0)


def is_used(value: ir.Value, *, except_by: Sequence[tuple[ir.Node, int]] = ()) -> bool:
    """Returns whether a value is a graph output or an input of a node, apart from the given uses."""
    return value.is_graph_output() or any(use not in except_by for use in value.uses())


class TensorflowNode(ForeignNode):
    """A FusedBatchNorm, or a gradient of one."""

    @property
    def rank(self) -> int | None:
        """The rank of x; None if it is unknown."""
        return known_rank([self.inputs["X"], *self.data()])

    @property
    def training(self) -> bool:
        """True if the statistics are computed from x."""
        return is_training(self.node)

    @property
    def epsilon(self) -> float:
        """The number that is added to the variance."""
        return float(self.attribute("epsilon"))

    @property
    def averaging_factor(self) -> float:
        """The weight of the batch in the running averages, in a node that was not refused."""
        return float(self.attribute("exponential_avg_factor"))

    def data_inputs(self) -> list[ir.Value]:
        """Returns x, and y_backprop of a gradient."""
        return [value for quantity in ("X", "dY") if (value := self.inputs.get(quantity)) is not None]

    def read_parameters(self) -> dict[str, ir.Value | None]:
        """Returns the inputs of shape [C] that the op reads, by their names in TensorFlow."""
        skip = self.node.op_type not in GRADIENTS and self.training and self.averaging_factor == 1.0
        unread = ("running_mean", "running_var") if skip else ()
        return {
            name: self.inputs.get(quantity)
            for name, quantity in self.op.inputs.items()
            if is_parameter(quantity) and quantity not in unread
        }

    def require_inputs(self) -> None:
        """Refuses a node that has lost an input.

        Raises:
            UnsupportedNodeError: One of the first five was reserve_space_3 of a forward node, which is gone.
        """
        if None in self.node.inputs[:5]:
            raise_refusals([(self.node, "it reads reserve_space_3, cuDNN's internal data, as a tensor")])
