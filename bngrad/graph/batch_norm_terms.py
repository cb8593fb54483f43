"""Nodes that several dialects need in front of our ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

if TYPE_CHECKING:
    from bngrad.graph.builder import NodeMaker


def statistics_dtype(x: ir.Value) -> ir.DataType:
    """The type that statistics of X are computed in: double for double, else float."""
    return ir.DataType.DOUBLE if x.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT


def cast_like(make: NodeMaker, value: ir.Value, dtype: ir.DataType, like: ir.Value) -> ir.Value:
    """Returns a value that was computed in a type as the type of another value, if that is known."""
    value.dtype = dtype
    return make.cast(value, like.dtype or dtype)


def inverse_std(emit: NodeMaker, variance: ir.Value, epsilon: float, dtype: ir.DataType) -> ir.Value:
    """1 / sqrt(variance + epsilon), for a system that hands a gradient the variance.

    Args:
        emit: Where the nodes go.
        variance: The biased variance.
        epsilon: Added to it; where the system keeps a float32, that number and not the decimal it came from.
        dtype: What to compute and return, see `statistics_dtype`.
    """
    shifted = emit.op("Add", emit.cast(variance, dtype), emit.constant(epsilon, dtype))
    result = emit.op("Reciprocal", emit.op("Sqrt", shifted))
    result.dtype, result.shape = dtype, variance.shape
    return result


def is_momentum(factor: float, dtype: ir.DataType | None) -> bool:
    """Whether 1 - (1 - factor) still is the factor where 1 - factor is a float32, the attribute momentum.

    The weight of the new value loses what 1 has more digits: 0.001 comes out 5e-5 of itself too large.

    Args:
        factor: The weight of the new value in a running average.
        dtype: The type of the average.
    """
    weight = 1.0 - float(np.float32(1.0 - factor))
    if dtype == ir.DataType.DOUBLE:
        return weight == factor
    sixteen_bits = dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    return abs(weight - factor) <= factor * (1e-4 if sixteen_bits else 1e-6)


def average(emit: NodeMaker, old: ir.Value, new: ir.Value, factor: float, dtype: ir.DataType) -> ir.Value:
    """A running average: old + factor * (new - old), or just the new value if it has all the weight.

    Not (1 - factor) * old + ..., for ONNX Runtime leaves out a product with a double that is 1 as a float.
    """
    if factor == 1.0:
        return new
    change = emit.op("Mul", emit.op("Sub", new, old), emit.constant(factor, dtype))
    result = emit.op("Add", old, change)
    result.dtype, result.shape = dtype, new.shape
    return result


def collapsed_shape(emit: NodeMaker, x: ir.Value) -> ir.Value:
    """The shape [N, C, S] for data with channels in dimension 1, of a rank that is not known, or 1: then C is 1.

    S is computed, and Reshape is to take it with allowzero = 1: -1 does not say what it is of an empty batch.

    Args:
        emit: Where the nodes go.
        x: The data.
    """
    c, s = (
        emit.op("ReduceProd", emit.op("Shape", x, **ends), keepdims=1)
        for ends in ({"start": 1, "end": 2}, {"start": 2})
    )
    return emit.op("Concat", emit.op("Shape", x, end=1), c, s, axis=0)
