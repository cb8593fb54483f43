"""Converts between a MIOpen node and an op of ``bngrad``: shapes, types, and blending with old contents.

* Parameters of any form (C, 1C11, 1CHW) are reshaped to the kept dimensions of X, and results back.
* Data of two types (MIOpen allows x in 16 bits with dy in float) is cast to the wider one. Blending is computed in
  at least float, so that the result is rounded once.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.batch_norm_terms import average, statistics_dtype
from bngrad.passes.imports.operands import Operands, typed

if TYPE_CHECKING:
    from bngrad.passes.base import Context
    from bngrad.passes.imports.miopen.form import MiopenNode


def wider(*dtypes: ir.DataType | None) -> ir.DataType | None:
    """Returns the type that represents all values of these types; None if all are unknown."""
    types = {dtype for dtype in dtypes if dtype is not None}
    if len(types) <= 1:
        return next(iter(types), None)
    return ir.DataType.DOUBLE if ir.DataType.DOUBLE in types else ir.DataType.FLOAT


def compute_dtype(dtype: ir.DataType | None) -> ir.DataType | None:
    """Returns the type to compute in for data of a type: float for 16 bits, else the type itself."""
    return dtype and wider(dtype, ir.DataType.FLOAT)


class MiopenOperands(Operands):
    """The operands of a MIOpen node, and its results."""

    node: MiopenNode

    def __init__(self, node: MiopenNode, context: Context, dtype: ir.DataType | None) -> None:
        super().__init__(node, context, dtype)
        self._kept_rank = 1 if node.mode == "spatial" else node.rank and node.rank - 1

    def parameter(self, quantity: str, dtype: ir.DataType | None = None) -> ir.Value:
        """Returns a parameter input in a type and in the shape of X's kept dimensions."""
        value = super().parameter(quantity, dtype)
        if value.shape is not None and len(value.shape) == self._kept_rank:
            return value
        return self.reshape(value, self._kept_shape)

    def parameter_dtype(self, *dtypes: ir.DataType | None) -> ir.DataType | None:
        """Returns the type to cast parameters of these types to: that of the data, or float.

        Returns None, which means no cast, if neither the data's type nor any of these is known.
        """
        result = wider(*dtypes)
        if result is None:
            return compute_dtype(self.dtype)
        # Parameters of 16 bits with data of a wider type are cast to float.
        return result if self.dtype in (None, result) else ir.DataType.FLOAT

    def data_result(
        self, value: ir.Value, like: str, weights: tuple[float, float] = (1.0, 0.0), old: str = ""
    ) -> ir.Value:
        """Returns data blended with the old contents of a quantity, in the type of the input ``like``."""
        blended = self.blend(value, self.node.inputs.get(old), weights)
        result = self._cast_like(blended, self.node.present(like))
        result.shape = self.node.present("X").shape
        return result

    def parameter_result(self, value: ir.Value, like: str, dtype: ir.DataType | None) -> ir.Value:
        """Returns a result in the shape of the input ``like``, and in the given type, by default that input's."""
        shaped_like = self.node.present(like)
        result = self.cast(value, dtype) if dtype else self._cast_like(value, shaped_like)
        if shaped_like.shape is None or len(shaped_like.shape) != self._kept_rank:
            result = self.reshape(result, self._shape_of(shaped_like))
        result.shape = shaped_like.shape
        return result

    def blend(self, new: ir.Value, old: ir.Value | None, weights: tuple[float, float]) -> ir.Value:
        """Returns alpha * new + beta * old, in the type of ``new``; ``old`` is not read if beta is 0."""
        alpha, beta = weights
        result = self._times(new, alpha)
        if old is None or beta == 0:
            return result
        return typed(self.emit.op("Add", result, self._times(self._cast_like(old, new), beta)), new.dtype)

    def average(self, new: ir.Value, old: ir.Value, factor: float) -> ir.Value:
        """Returns old + factor * (new - old), in the type of ``new``."""
        dtype = statistics_dtype(new)
        return self.cast(
            average(self.emit, self.cast(old, dtype), self.cast(new, dtype), factor, dtype), new.dtype
        )

    def _times(self, value: ir.Value, factor: float) -> ir.Value:
        if factor == 1:
            return value
        if value.dtype is None:
            constant = self.emit.op("CastLike", self.emit.constant(factor, ir.DataType.FLOAT), value)
        else:
            constant = self.emit.constant(factor, value.dtype)
        return typed(self.emit.op("Mul", value, constant), value.dtype)

    def _cast_like(self, value: ir.Value, like: ir.Value) -> ir.Value:
        if like.dtype is not None or value.dtype is None:
            return self.cast(value, like.dtype)
        return self.emit.op("CastLike", value, like)

    @cached_property
    def _kept_shape(self) -> ir.Value:
        """The shape of X's kept dimensions."""
        spatial = self.node.mode == "spatial"
        return self.emit.int64([-1]) if spatial else self._shape_of(self.node.present("X"), start=1)

    def _shape_of(self, value: ir.Value, **attributes: int) -> ir.Value:
        return typed(self.emit.op("Shape", value, **attributes), ir.DataType.INT64)
