"""Shapes and dimensions of values for new nodes: constants where they are known, else computed at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.graph.node_reader import static_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from bngrad.graph.builder import NodeMaker


def known_dimension(value: ir.Value, axis: int) -> int | None:
    """Returns one dimension of a value, if it is a number; None if it is not, or the value has no such axis."""
    if value.shape is None or not -len(value.shape) <= axis < len(value.shape):
        return None
    size = value.shape[axis]
    return size if isinstance(size, int) else None


def has_one_element(value: ir.Value) -> bool:
    """Returns whether a value is known to have one element, in any rank."""
    return value.shape is not None and all(size == 1 for size in value.shape)


def shape_of(make: NodeMaker, value: ir.Value) -> ir.Value:
    """Returns the shape of a value."""
    shape = static_shape(value)
    return make.op("Shape", value) if shape is None else make.int64(list(shape))


def dimension_of(make: NodeMaker, value: ir.Value, axis: int) -> ir.Value:
    """Returns one dimension of a value, as a vector of one number; a negative axis counts from the last."""
    size = known_dimension(value, axis)
    if size is not None:
        return make.int64([size])
    # The end after the last axis has no number where the axis counts from the last.
    return make.op("Shape", value, start=axis, **({} if axis == -1 else {"end": axis + 1}))


def zeros(make: NodeMaker, shape: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Returns zeros of a shape and type."""
    result = make.op("Expand", make.constant(0, dtype), shape)
    result.dtype = dtype
    return result


def lengths_of(make: NodeMaker, values: Sequence[ir.Value], axis: int) -> ir.Value:
    """Returns the dimensions of several values along an axis, as a vector."""
    sizes = [known_dimension(value, axis) for value in values]
    if None not in sizes:
        return make.int64(sizes)
    return make.op("Concat", *(dimension_of(make, value, axis) for value in values), axis=0)
