"""Between a MIOpen node and one of ours: shapes, types, and the blending with old contents.

* Parameters of any form (C, 1C11, 1CHW) become those of X's kept dimensions, and results take scale's form again.
* X of a rank that is not known becomes [N, C, S], for the spatial mode; dX becomes X's shape again.
* Types: data of two types (MIOpen has x in 16 bits with dy in float) becomes the wider. A blend is computed in
  float at least, so that the result is rounded once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.batch_norm_terms import average, collapsed_shape, statistics_dtype
from bngrad.passes.replace import Emitter

if TYPE_CHECKING:
    from bngrad.passes.base import Context
    from bngrad.passes.imports.miopen.form import MiopenNode


def wider(*dtypes: ir.DataType | None) -> ir.DataType | None:
    """The type that holds all the values of these; None if none is known."""
    known = {dtype for dtype in dtypes if dtype is not None}
    if len(known) <= 1:
        return next(iter(known), None)
    return ir.DataType.DOUBLE if ir.DataType.DOUBLE in known else ir.DataType.FLOAT


def computing(dtype: ir.DataType | None) -> ir.DataType | None:
    """The type to do arithmetic in for data of a type: float for 16 bits."""
    return dtype and wider(dtype, ir.DataType.FLOAT)


def typed(value: ir.Value, dtype: ir.DataType | None) -> ir.Value:
    """A new value, with its type noted if that is known."""
    if dtype is not None:
        value.dtype = dtype
    return value


class Operands:
    """Makes the operands of an op of ours from a node's inputs, and the node's outputs from the op's results.

    Args:
        node: A node that was not refused.
        context: The model's.
        dtype: What X and its like are to be cast to; None leaves them as they are.
    """

    def __init__(self, node: MiopenNode, context: Context, dtype: ir.DataType | None) -> None:
        self.emit = Emitter(node.node, context)
        self.node = node
        self.dtype = dtype
        self.axes = self.emit.axes(node.axes)
        self._collapsed = node.mode == "spatial" and node.rank is None
        self._kept_rank = 1 if node.mode == "spatial" else node.rank and node.rank - 1
        self._targets: dict[str, ir.Value] = {}

    # ---- inputs ----

    def data(self, name: str) -> ir.Value:
        """An input of X's shape."""
        value = self._cast(self.node.present(name), self.dtype)
        if not self._collapsed:
            return value
        return self._reshape(value, self._target("collapsed"))

    def parameter(self, name: str, dtype: ir.DataType | None) -> ir.Value:
        """An input of scale's shape, in the shape of X's kept dimensions."""
        value = self._cast(self.node.present(name), dtype)
        if value.shape is not None and len(value.shape) == self._kept_rank:
            return value
        return self._reshape(value, self._target("kept"))

    def broadcast(self, name: str, dtype: ir.DataType | None) -> ir.Value:
        """An input of scale's shape, for arithmetic with data."""
        return self._op("Unsqueeze", self.parameter(name, dtype), self.axes, dtype=dtype)

    def parameter_dtype(self, *dtypes: ir.DataType | None) -> ir.DataType | None:
        """The type to have parameters of these types in: X's or float, as our ops have it.

        None where neither is known; then nothing is cast.
        """
        result = wider(*dtypes)
        if result is None:
            return computing(self.dtype)
        # Neither X's nor float: 16 bits beside an X that was cast to something wider.
        return result if self.dtype in (None, result) else ir.DataType.FLOAT

    # ---- results ----

    def data_result(
        self, value: ir.Value, like: str, alpha: float = 1.0, beta: float = 0.0, old: str = ""
    ) -> ir.Value:
        """Returns alpha * value + beta * old, in X's shape and in the type of the input ``like``."""
        if self._collapsed:
            value = self._reshape(typed(value, self.dtype), self._target("whole"))
        blended = self.blend(typed(value, self.dtype), self.node.input(old) if beta else None, alpha, beta)
        result = self._cast_like(blended, self.node.present(like))
        result.shape = self.node.present("x").shape
        return result

    def parameter_result(self, value: ir.Value, like: str, dtype: ir.DataType | None) -> ir.Value:
        """A result in the shape of the input ``like``, and in a type: that one's too if None."""
        shaped_like = self.node.present(like)
        result = self._cast(value, dtype) if dtype else self._cast_like(value, shaped_like)
        if shaped_like.shape is None or len(shaped_like.shape) != self._kept_rank:
            result = self._reshape(result, self._shape_of(shaped_like))
        result.shape = shaped_like.shape
        return result

    def blend(self, new: ir.Value, old: ir.Value | None, alpha: float, beta: float) -> ir.Value:
        """Returns alpha * new + beta * old, in the type of ``new``; old contents of weight 0 are not read."""
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
        """Takes the node out; its outputs are these, by name."""
        names = list(self.node.form.outputs)
        present = {name: value for name, value in outputs.items() if self.node.output(name) is not None}
        self.emit.replace({names.index(name): value for name, value in present.items()})

    # ---- the nodes for it ----

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

    def _target(self, name: str) -> ir.Value:
        """A shape to reshape to, made when it is first needed."""
        if name not in self._targets:
            if name == "collapsed":
                value = collapsed_shape(self.emit, self.node.present("x"))
            elif name == "whole":
                value = self._shape_of(self.node.present("x"))
            elif self.node.mode == "spatial":
                value = self.emit.constant([-1], ir.DataType.INT64)
            else:
                value = self._shape_of(self.node.present("x"), start=1)
            self._targets[name] = value
        return self._targets[name]

    def _shape_of(self, value: ir.Value, **part: int) -> ir.Value:
        return self._op("Shape", value, dtype=ir.DataType.INT64, **part)

    def _reshape(self, value: ir.Value, shape: ir.Value) -> ir.Value:
        # An extent of 0 is 0, and not that of the value in the same place.
        return self._op("Reshape", value, shape, dtype=value.dtype, allowzero=1)

    def _op(
        self, op_type: str, *inputs: ir.Value, dtype: ir.DataType | None = None, **attributes: int
    ) -> ir.Value:
        return typed(self.emit.op(op_type, *inputs, **attributes), dtype)
