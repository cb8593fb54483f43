"""MeanVarianceNormalization."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.autodiff.rule import gradient
from bngrad.graph.batch_norm_terms import cast_like, statistics_dtype
from bngrad.graph.node_reader import like
from bngrad.opset.op_attributes import ANY

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients

_EPSILON = 1e-9
"""The number that ONNX adds to the deviation; ONNX Runtime adds less."""


@gradient("MeanVarianceNormalization", versions=(13,), attributes={"axes": ANY})
def mean_variance_normalization(back: Backward) -> Gradients:
    """dX = (dY - mean dY - (X - mean X) / std mean(dY Y)) / s, s = std + epsilon, where Y = (X - mean X) / s.

    Where std is 0, the third term is 0.
    """
    x, dtype = back.x(0), statistics_dtype(back.x(0))
    numbers = list(back.attribute("axes", [0, 2, 3]))
    if not numbers:
        back.refuse("its axes are empty, which runtimes read differently; expected one or more")
    axes = back.int64(numbers)

    def mean(value: ir.Value) -> ir.Value:
        return back.op("ReduceMean", value, axes, keepdims=1)

    def centered(value: ir.Value) -> ir.Value:
        return back.op("Sub", value, mean(value))

    x, dY = back.cast(x, dtype), back.cast(back.dY, dtype)
    distance = centered(x)
    deviation = back.op("Sqrt", mean(back.op("Mul", distance, distance)))
    zero, unit = like(back, 0, x), like(back, 1, x)
    length = back.op("Where", back.op("Equal", deviation, zero), unit, deviation)
    divisor = back.op("Add", deviation, like(back, _EPSILON, x))
    share = mean(back.op("Mul", dY, back.op("Div", distance, divisor)))
    along = back.op("Mul", back.op("Div", distance, length), share)
    result = back.op("Div", back.op("Sub", centered(dY), along), divisor)
    return [cast_like(back, result, dtype, back.x(0))]
