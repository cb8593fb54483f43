"""Nodes that compute the operands of batch-norm ops from those of other systems."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from bngrad.graph.batch_norms import SIXTEEN_BITS

if TYPE_CHECKING:
    from bngrad.graph.builder import NodeMaker


def statistics_dtype(x: ir.Value) -> ir.DataType:
    """Returns the type that statistics of X are computed in: double for double, else float."""
    return ir.DataType.DOUBLE if x.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT


def cast_like(make: NodeMaker, value: ir.Value, dtype: ir.DataType, like: ir.Value) -> ir.Value:
    """Converts a value that was computed in a type to the type of another value, if that is known."""
    value.dtype = dtype
    return make.cast(value, like.dtype or dtype)


def inverse_std(emit: NodeMaker, variance: ir.Value, epsilon: float, dtype: ir.DataType) -> ir.Value:
    """Computes 1 / sqrt(variance + epsilon), for a system whose gradient op takes the variance.

    Args:
        emit: The maker of the nodes.
        variance: The biased variance.
        epsilon: Added to the variance; the float32 value where the system stores a float32.
        dtype: The type of the result; see `statistics_dtype`.
    """
    shifted = emit.op("Add", emit.cast(variance, dtype), emit.constant(epsilon, dtype))
    result = emit.op("Reciprocal", emit.op("Sqrt", shifted))
    result.dtype, result.shape = dtype, variance.shape
    return result


def is_momentum(factor: float, dtype: ir.DataType | None) -> bool:
    """Returns whether the float32 attribute momentum, 1 - factor, represents the factor accurately.

    The subtraction cancels digits: a factor of 0.001 becomes too large by a relative 5e-5.

    Args:
        factor: The weight of the new value in a running average.
        dtype: The type of the average.
    """
    weight = 1.0 - float(np.float32(1.0 - factor))
    if dtype == ir.DataType.DOUBLE:
        return weight == factor
    sixteen_bits = dtype in SIXTEEN_BITS
    return abs(weight - factor) <= factor * (1e-4 if sixteen_bits else 1e-6)


def average(emit: NodeMaker, old: ir.Value, new: ir.Value, factor: float, dtype: ir.DataType) -> ir.Value:
    """Computes a running average: old + factor * (new - old), or the new value if factor is 1.

    Not (1 - factor) * old + ...: ONNX Runtime removes a product with a double that rounds to 1 in float.
    """
    if factor == 1.0:
        return new
    change = emit.op("Mul", emit.op("Sub", new, old), emit.constant(factor, dtype))
    result = emit.op("Add", old, change)
    result.dtype, result.shape = dtype, new.shape
    return result


def collapsed_shape(emit: NodeMaker, x: ir.Value, *, channels_last: bool = False) -> ir.Value:
    """Computes the shape [N, C, S] of data with channels in dimension 1; for data of rank 1, C is 1.

    S is computed, for Reshape with allowzero = 1: -1 is ambiguous for an empty batch.

    Args:
        emit: The maker of the nodes.
        x: The data, of any or unknown rank.
        channels_last: Whether the channels are the last dimension; the shape is [S, C] then.
    """
    if channels_last:
        s = emit.op("ReduceProd", emit.op("Shape", x, end=-1), keepdims=1)
        return emit.op("Concat", s, emit.op("Shape", x, start=-1), axis=0)
    c, s = (
        emit.op("ReduceProd", emit.op("Shape", x, **ends), keepdims=1)
        for ends in ({"start": 1, "end": 2}, {"start": 2})
    )
    return emit.op("Concat", emit.op("Shape", x, end=1), c, s, axis=0)
