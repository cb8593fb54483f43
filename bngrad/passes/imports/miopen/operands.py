"""Converts between a MIOpen node and an op of ``bngrad``: shapes, types, and blending with old contents.

* Parameters of any form (C, 1C11, 1CHW) are reshaped to the kept dimensions of x, and results back.
* In spatial mode, x of unknown rank is reshaped to [N, C, S], and dx back.
* Data of two types (MIOpen allows x in 16 bits with dy in float) is cast to the wider one. Blending is computed in
  at least float, so that the result is rounded once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import onnx_ir as ir

from bngrad.graph.batch_norm_terms import average, collapsed_shape, statistics_dtype
from bngrad.passes.replace import Emitter

if TYPE_CHECKING:
    from bngrad.passes.base import Context
    from bngrad.passes.imports.miopen.form import MiopenNode


def wider(*dtypes: ir.DataType | None) -> ir.DataType | None:
    """Returns the type that represents all values of these types; None if all are unknown."""
    known = {dtype for dtype in dtypes if dtype is not None}
    if len(known) <= 1:
        return next(iter(known), None)
    return ir.DataType.DOUBLE if ir.DataType.DOUBLE in known else ir.DataType.FLOAT


def compute_dtype(dtype: ir.DataType | None) -> ir.DataType | None:
    """Returns the type to compute in for data of a type: float for 16 bits, else the type itself."""
    return dtype and wider(dtype, ir.DataType.FLOAT)


def typed(value: ir.Value, dtype: ir.DataType | None) -> ir.Value:
    """Sets the type of a new value if it is known, and returns the value."""
    if dtype is not None:
        value.dtype = dtype
    return value


class Operands:
    """Converts a node's inputs to operands of an op of ``bngrad``, and the op's results to the node's outputs.

    Args:
        node: A node that was not refused.
        context: The context of the model's rewrites.
        dtype: The type to cast data to; None leaves it unchanged.
    """

    def __init__(self, node: MiopenNode, context: Context, dtype: ir.DataType | None) -> None:
        self.emit = Emitter(node.node, context)
        self.node = node
        self.dtype = dtype
        self.axes = self.emit.axes(node.axes)
        self._collapsed = node.mode == "spatial" and node.rank is None
        self._kept_rank = 1 if node.mode == "spatial" else node.rank and node.rank - 1
        self._shapes: dict[str, ir.Value] = {}

    # ---- inputs ----

    def data(self, name: str) -> ir.Value:
        """Returns a data input in the type and shape for the op."""
        value = self._cast(self.node.present(name), self.dtype)
        if not self._collapsed:
            return value
        return self._reshape(value, self._shape("collapsed"))

    def parameter(self, name: str, dtype: ir.DataType | None) -> ir.Value:
        """Returns a parameter input in the shape of x's kept dimensions."""
        value = self._cast(self.node.present(name), dtype)
        if value.shape is not None and len(value.shape) == self._kept_rank:
            return value
        return self._reshape(value, self._shape("kept"))

    def broadcast(self, name: str, dtype: ir.DataType | None) -> ir.Value:
        """Returns a parameter input in a shape that broadcasts against the data."""
        return self._op("Unsqueeze", self.parameter(name, dtype), self.axes, dtype=dtype)

    def parameter_dtype(self, *dtypes: ir.DataType | None) -> ir.DataType | None:
        """Returns the type to cast parameters of these types to: that of the data, or float.

        Returns None, which means no cast, if neither the data's type nor any of these is known.
        """
        result = wider(*dtypes)
        if result is None:
            return compute_dtype(self.dtype)
        # Parameters of 16 bits with data of a wider type are cast to float.
        return result if self.dtype in (None, result) else ir.DataType.FLOAT

    # ---- results ----

    def data_result(
        self, value: ir.Value, like: str, alpha: float = 1.0, beta: float = 0.0, old: str = ""
    ) -> ir.Value:
        """Returns alpha * value + beta * old, in the shape of x and in the type of the input ``like``."""
        if self._collapsed:
            value = self._reshape(typed(value, self.dtype), self._shape("x"))
        blended = self.blend(typed(value, self.dtype), self.node.input(old) if beta else None, alpha, beta)
        result = self._cast_like(blended, self.node.present(like))
        result.shape = self.node.present("x").shape
        return result

    def parameter_result(self, value: ir.Value, like: str, dtype: ir.DataType | None) -> ir.Value:
        """Returns a result in the shape of the input ``like``, and in the given type, by default that input's."""
        shaped_like = self.node.present(like)
        result = self._cast(value, dtype) if dtype else self._cast_like(value, shaped_like)
        if shaped_like.shape is None or len(shaped_like.shape) != self._kept_rank:
            result = self._reshape(result, self._shape_of(shaped_like))
        result.shape = shaped_like.shape
        return result

    def blend(self, new: ir.Value, old: ir.Value | None, alpha: float, beta: float) -> ir.Value:
        """Returns alpha * new + beta * old, in the type of ``new``; ``old`` is not read if beta is 0."""
        result = self._times(new, alpha)
        if old is None or beta == 0:
            return result
        return self._op("Add", result, self._times(self._cast_like(old, new), beta), dtype=new.dtype)

    def average(self, new: ir.Value, old: ir.Value, factor: float) -> ir.Value:
        """Returns old + factor * (new - old), in the type of ``new``."""
        dtype = statistics_dtype(new)
        return self._cast(
            average(self.emit, self._cast(old, dtype), self._cast(new, dtype), factor, dtype), new.dtype
        )

    def replace(self, **outputs: ir.Value) -> None:
        """Replaces the node; its outputs become these values, by name."""
        names = list(self.node.form.outputs)
        present = {name: value for name, value in outputs.items() if self.node.output(name) is not None}
        self.emit.replace({names.index(name): value for name, value in present.items()})

    # ---- nodes ----

    def _times(self, value: ir.Value, factor: float) -> ir.Value:
        if factor == 1:
            return value
        if value.dtype is None:
            constant = self.emit.op("CastLike", self.emit.constant(factor, ir.DataType.FLOAT), value)
        else:
            constant = self.emit.constant(factor, value.dtype)
        return self._op("Mul", value, constant, dtype=value.dtype)

    def _cast(self, value: ir.Value, dtype: ir.DataType | None) -> ir.Value:
        return value if dtype is None else self.emit.cast(value, dtype)

    def _cast_like(self, value: ir.Value, like: ir.Value) -> ir.Value:
        if like.dtype is not None or value.dtype is None:
            return self._cast(value, like.dtype)
        return self._op("CastLike", value, like)

    def _shape(self, name: Literal["collapsed", "x", "kept"]) -> ir.Value:
        """Returns a shape, made on first use: [N, C, S], that of x, or that of x's kept dimensions."""
        if name not in self._shapes:
            if name == "collapsed":
                value = collapsed_shape(self.emit, self.node.present("x"))
            elif name == "x":
                value = self._shape_of(self.node.present("x"))
            elif self.node.mode == "spatial":
                value = self.emit.constant([-1], ir.DataType.INT64)
            else:
                value = self._shape_of(self.node.present("x"), start=1)
            self._shapes[name] = value
        return self._shapes[name]

    def _shape_of(self, value: ir.Value, **attributes: int) -> ir.Value:
        return self._op("Shape", value, dtype=ir.DataType.INT64, **attributes)

    def _reshape(self, value: ir.Value, shape: ir.Value) -> ir.Value:
        # Without allowzero, Reshape reads a size of 0 as "copy the input's size".
        return self._op("Reshape", value, shape, dtype=value.dtype, allowzero=1)

    def _op(
        self, op_type: str, *inputs: ir.Value, dtype: ir.DataType | None = None, **attributes: int
    ) -> ir.Value:
        return typed(self.emit.op(op_type, *inputs, **attributes), dtype)
