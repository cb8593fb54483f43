"""Converts the inputs of a foreign node to operands of an op of ``bngrad``, and its results to the node's outputs.

Data of unknown rank, of rank 1 or of a rank above the ops' maximum is reshaped to [N, C, S], or to [S, C] if the
channels are last, and results are reshaped back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.batch_norm_terms import collapsed_shape, inverse_std
from bngrad.opset.schemas import signature
from bngrad.passes.imports.foreign_node import ForeignNode, is_data
from bngrad.passes.replace import Emitter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bngrad.passes.base import Context


def typed(value: ir.Value, dtype: ir.DataType | None) -> ir.Value:
    """Sets the type of a new value if it is known, and returns the value."""
    if dtype is not None:
        value.dtype = dtype
    return value


class Operands:
    """The operands of a node, and its results.

    Args:
        node: A node that was not refused.
        context: The context of the model's rewrites.
        dtype: The type to cast data to; None leaves it unchanged.
    """

    def __init__(self, node: ForeignNode, context: Context, dtype: ir.DataType | None = None) -> None:
        self.emit = Emitter(node.node, context)
        self.node = node
        self.dtype = dtype
        self.axes = self.emit.axes(node.axes)
        self._original = self.emit.op("Shape", node.present("X")) if node.collapsed else None
        self._flat = self._flat_shape() if node.collapsed else None
        self._data: dict[str, ir.Value] = {}

    def data(self, quantity: str) -> ir.Value:
        """Returns a data input in the type and shape for the op."""
        if quantity not in self._data:
            value = self.cast(self.node.present(quantity), self.dtype)
            self._data[quantity] = value if self._flat is None else self._collapsed(value, self._flat)
        return self._data[quantity]

    def parameter(self, quantity: str, dtype: ir.DataType | None = None) -> ir.Value:
        """Returns a parameter input in a type, by default its own, and in the shape for the op."""
        return self.cast(self.node.present(quantity), dtype)

    def broadcast(self, parameter: ir.Value) -> ir.Value:
        """Returns a parameter in a shape that broadcasts against the data."""
        axes = self.node.axes
        kept = [dimension for dimension in range(len(axes) + 1) if dimension not in axes]
        trailing = [1 + index for index, axis in enumerate(axis for axis in axes if axis > kept[0])]
        return self.emit.op("Unsqueeze", parameter, self.emit.axes(trailing)) if trailing else parameter

    def frozen_statistics(
        self, mean: str, variance: str, epsilon: float, dtype: ir.DataType | None
    ) -> dict[str, ir.Value]:
        """Returns the operands mean and inv_std, of one type.

        Args:
            mean: The quantity of the mean.
            variance: The quantity of the biased variance.
            epsilon: Added to the variance.
            dtype: The type to compute in, see `statistics_dtype`. None if that of X is unknown: double is exact
                enough for both then, and the result in their own type suits every X.
        """
        its_mean, its_variance = self.parameter(mean), self.parameter(variance)
        if dtype is not None:
            inv_std = inverse_std(self.emit, its_variance, epsilon, dtype)
            return {"mean": self.emit.cast(its_mean, dtype), "inv_std": inv_std}
        inv_std = inverse_std(self.emit, its_variance, epsilon, ir.DataType.DOUBLE)
        return {"mean": its_mean, "inv_std": self.emit.op("CastLike", inv_std, its_mean)}

    def apply(
        self, op_type: str, computed: Mapping[str, ir.Value] | None = None, **attributes: float | ir.Attr
    ) -> dict[str, ir.Value]:
        """Inserts an op of ``bngrad`` and returns its outputs by quantity; the node's data has the shape of X.

        Args:
            op_type: The op.
            computed: Inputs by quantity; the others are those of the node.
            attributes: The op's attributes.
        """
        inputs, outputs, _ = signature(op_type)
        operands = dict(computed or {})
        for quantity in inputs:
            if quantity not in operands and quantity != "axes":
                operands[quantity] = self.data(quantity) if is_data(quantity) else self.parameter(quantity)
        values = [operands[quantity] for quantity in inputs if quantity != "axes"]
        results = self.emit.bngrad(op_type, *values, axes=self.axes, **attributes)
        by_quantity = dict(zip(outputs, results, strict=True))
        for quantity in self.node.outputs:
            if quantity in by_quantity and is_data(quantity):
                by_quantity[quantity] = self.restored(typed(by_quantity[quantity], self.dtype))
        return by_quantity

    def normalize(self, epsilon: float, dtype: ir.DataType) -> ir.Value:
        """Returns (X - running_mean) * (scale / sqrt(running_var + epsilon)) + bias, in the shape of X.

        ONNX's BatchNormalization is not used: ONNX Runtime's kernel multiplies before it subtracts the mean, which
        loses precision if the mean is large, and it supports neither all types nor channels-last data.

        Args:
            epsilon: Added to the variance.
            dtype: The type to compute and return.
        """
        emit = self.emit
        inv_std = inverse_std(emit, self.parameter("running_var"), epsilon, dtype)
        factor = emit.op("Mul", self.parameter("scale", dtype), inv_std)
        x = emit.cast(self.data("X"), dtype)
        centered = emit.op("Sub", x, self.broadcast(self.parameter("running_mean", dtype)))
        scaled = emit.op("Mul", centered, self.broadcast(factor))
        y = emit.op("Add", scaled, self.broadcast(self.parameter("bias", dtype)))
        y.dtype = dtype
        return self.restored(y)

    def restored(self, value: ir.Value) -> ir.Value:
        """Returns data in the shape of X."""
        return value if self._original is None else self.reshape(value, self._original)

    def replace(self, results: Mapping[str, ir.Value]) -> None:
        """Replaces the node; its outputs become these values, by quantity."""
        quantities = list(self.node.op.outputs.values())
        self.emit.replace({quantities.index(q): value for q, value in results.items() if q in self.node.outputs})

    def cast(self, value: ir.Value, dtype: ir.DataType | None) -> ir.Value:
        """Returns a value as a type; itself if the type is None."""
        return value if dtype is None else self.emit.cast(value, dtype)

    def reshape(self, value: ir.Value, shape: ir.Value) -> ir.Value:
        """Returns a value in a shape, with its type."""
        # Without allowzero, Reshape reads a size of 0 as "copy the input's size".
        return typed(self.emit.op("Reshape", value, shape, allowzero=1), value.dtype)

    def _collapsed(self, value: ir.Value, shape: ir.Value) -> ir.Value:
        result = self.reshape(value, shape)
        # The type of X decides which functions are embedded.
        if value.dtype is not None:
            result.shape = ir.Shape([None] * (2 if self.node.channels_last else 3))
        return result

    def _flat_shape(self) -> ir.Value:
        return collapsed_shape(self.emit, self.node.present("X"), channels_last=self.node.channels_last)
