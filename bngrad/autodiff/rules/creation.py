"""Ops that make a tensor of a few numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.autodiff.rule import gradient
from bngrad.graph.batch_norm_terms import cast_like, statistics_dtype
from bngrad.graph.node_reader import dtype_of
from bngrad.graph.shapes import shape_of
from bngrad.opset.op_attributes import ANY, AXIS

if TYPE_CHECKING:
    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients


@gradient("Range", inputs=(0, 2), zero=(1,), versions=(11, 27), attributes={"stash_type": ANY})
def range_(back: Backward) -> Gradients:
    """For Y_i = start + i delta: dstart = sum dY, ddelta = sum i dY. The limit only determines the length."""
    start, delta = back.x(0), back.x(2)
    dtype = statistics_dtype(start)
    dY = back.cast(back.dY, dtype)
    dstart = ddelta = None
    if back.needs(0):
        total = back.op("ReduceSum", dY, keepdims=0)
        dstart = back.op("Reshape", cast_like(back, total, dtype, start), shape_of(back, start))
    if back.needs(2):
        i = back.op("Range", back.int64(0), back.op("Size", dY), back.int64(1))
        total = back.op("ReduceSum", back.op("Mul", dY, back.op("Cast", i, to=int(dtype))), keepdims=0)
        ddelta = back.op("Reshape", cast_like(back, total, dtype, delta), shape_of(back, delta))
    return [dstart, None, ddelta]


@gradient("OneHot", inputs=(2,), zero=(0, 1), versions=(11, 28), attributes=AXIS)
def one_hot(back: Backward) -> Gradients:
    """dvalues = the sum of dY where Y is the first value, off, and the sum where it is the second, on."""
    values = back.x(2)
    dtype = statistics_dtype(values)
    dY, zero = back.cast(back.dY, dtype), back.constant(0, dtype)
    # In the type of the forward node, because ONNX Runtime supports few combinations of types.
    numbers = back.constant([0, 1], dtype_of(values))
    hot = back.op("OneHot", back.x(0), back.x(1), numbers, axis=back.attribute("axis", -1))
    on = back.op("Cast", hot, to=int(ir.DataType.BOOL))
    parts = [back.op("Where", on, zero, dY), back.op("Where", on, dY, zero)]
    sums = [back.op("Unsqueeze", back.op("ReduceSum", part, keepdims=0), back.int64([0])) for part in parts]
    return [None, None, cast_like(back, back.op("Concat", *sums, axis=0), dtype, values)]
