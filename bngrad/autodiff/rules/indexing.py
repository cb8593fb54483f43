"""Ops that pick elements by position; their gradients are ORT's own gradient ops where it has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.autodiff.rule import gradient
from bngrad.graph.node_reader import dtype_of
from bngrad.graph.shapes import dimension_of, shape_of, zeros
from bngrad.opset.op_attributes import ANY, AXIS, FLAG

if TYPE_CHECKING:
    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients


@gradient("Slice", versions=(13,))
def slice_(back: Backward) -> Gradients:
    """SliceGrad(dY, shape of X, starts, ends, axes, steps): dX = dY at the elements that were taken, else 0."""
    return [back.microsoft("SliceGrad", back.dY, shape_of(back, back.x(0)), *back.node.inputs[1:])]


@gradient("Gather", versions=(13,), attributes=AXIS)
def gather(back: Backward) -> Gradients:
    """GatherGrad(shape of X, indices, dY): dX = dY added up at the indices along the axis."""
    return [
        back.microsoft("GatherGrad", shape_of(back, back.x(0)), back.x(1), back.dY, axis=back.attribute("axis", 0))
    ]


@gradient("GatherElements", versions=(13,), attributes=AXIS)
def gather_elements(back: Backward) -> Gradients:
    """GatherElementsGrad(dY, shape of X, indices): dX = each element of dY added at its own index."""
    axis = back.attribute("axis", 0)
    return [back.microsoft("GatherElementsGrad", back.dY, shape_of(back, back.x(0)), back.x(1), axis=axis)]


@gradient("GatherND", versions=(13,), attributes={"batch_dims": ANY})
def gather_nd(back: Backward) -> Gradients:
    """GatherNDGrad(shape of X, indices, dY): dX = dY added up where whole indices point."""
    batch_dims = back.attribute("batch_dims", 0)
    return [back.microsoft("GatherNDGrad", shape_of(back, back.x(0)), back.x(1), back.dY, batch_dims=batch_dims)]


@gradient("TopK", versions=(11, 24), attributes={**AXIS, "largest": FLAG, "sorted": FLAG})
def top_k(back: Backward) -> Gradients:
    """dX = dValues at the indices that the node returns, else 0; it decides which of equal elements those are."""
    x, axis = back.x(0), back.attribute("axis", -1)
    nothing = zeros(back, shape_of(back, x), dtype_of(x))
    return [back.op("ScatterElements", nothing, _indices(back), back.dY, axis=axis)]


@gradient("Compress", versions=(11, 28), attributes=AXIS)
def compress(back: Backward) -> Gradients:
    """dX = dY at the elements that were kept, else 0. Their numbers are those that the op keeps of all numbers."""
    x, axis = back.x(0), back.attribute("axis", None)
    size = back.op("Size", x) if axis is None else back.op("Squeeze", dimension_of(back, x, axis), back.int64([0]))
    numbers = back.op("Range", back.int64(0), size, back.int64(1))
    return [_put_back(back, back.op("Compress", numbers, back.x(1), axis=0), axis)]


@gradient("Unique", versions=(11, 28), attributes={**AXIS, "sorted": FLAG})
def unique(back: Backward) -> Gradients:
    """dX = dY at the first of equal elements, or slices, else 0: ONNX defines their indices."""
    return [_put_back(back, _indices(back), back.attribute("axis", None))]


def _put_back(back: Backward, indices: ir.Value, axis: int | None) -> ir.Value:
    """Returns dY at distinct indices along an axis of X, or of all its elements; 0 elsewhere."""
    x = back.x(0)
    if axis is not None:
        indices.dtype, indices.shape = ir.DataType.INT64, ir.Shape([None])
        return back.microsoft("GatherGrad", shape_of(back, x), indices, back.dY, axis=axis)
    line = zeros(back, back.op("Reshape", back.op("Size", x), back.int64([1])), dtype_of(x))
    placed = back.op("ScatterElements", line, indices, back.dY, axis=0)
    return back.op("Reshape", placed, shape_of(back, x), allowzero=1)


def _indices(back: Backward) -> ir.Value:
    """Returns the second output of the node: indices of elements of X."""
    indices = back.y(1)
    indices.dtype = ir.DataType.INT64
    return indices


@gradient("CumSum", versions=(14,), attributes={"exclusive": FLAG, "reverse": FLAG})
def cum_sum(back: Backward) -> Gradients:
    """dX = CumSum(dY) from the other end."""
    exclusive, reverse = back.attribute("exclusive", 0), back.attribute("reverse", 0)
    return [back.op("CumSum", back.dY, back.x(1), exclusive=exclusive, reverse=1 - reverse)]


@gradient("ReverseSequence", versions=(10, 28), attributes={"batch_axis": FLAG, "time_axis": FLAG})
def reverse_sequence(back: Backward) -> Gradients:
    """dX = the same sequences of dY reversed."""
    return [back.op("ReverseSequence", back.dY, back.x(1), **back.attributes())]


@gradient("Trilu", versions=(14,), attributes={"upper": FLAG})
def trilu(back: Backward) -> Gradients:
    """dX = the same triangle of dY."""
    return [back.op("Trilu", back.dY, *back.node.inputs[1:], upper=back.attribute("upper", 1))]
