"""Ops that pick elements by position; their gradients are ORT's own gradient ops where it has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.autodiff.rule import gradient
from bngrad.graph.node_reader import dtype_of
from bngrad.graph.shapes import shape_of, zeros
from bngrad.opset.op_attributes import ANY, AXIS, FLAG, SCATTER

if TYPE_CHECKING:
    from collections.abc import Callable

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


@gradient("ScatterElements", inputs=(0, 2), versions=(18,), attributes={**AXIS, **SCATTER})
def scatter_elements(back: Backward) -> Gradients:
    """dX = dY, except 0 where updates replaced X; dupdates = dY there."""
    axis = {"axis": back.attribute("axis", 0)}
    return _scattered(back, axis, lambda values: back.op("GatherElements", values, back.x(1), **axis))


@gradient("ScatterND", inputs=(0, 2), versions=(18,), attributes=SCATTER)
def scatter_nd(back: Backward) -> Gradients:
    """dX = dY, except 0 where updates replaced X; dupdates = dY there, by whole indices."""
    return _scattered(back, {}, lambda values: back.op("GatherND", values, back.x(1)))


def _scattered(back: Backward, attributes: dict[str, int], picked: Callable[[ir.Value], ir.Value]) -> Gradients:
    """Gradients of both; of several updates of one element all have one, or the last, as the framework has it."""
    reduction = back.attribute("reduction", "none")
    dX = dupdates = None
    if back.needs(0) and reduction == "add":
        dX = back.dY
    elif back.needs(0):
        nothing = zeros(back, shape_of(back, back.x(2)), dtype_of(back.x(0)))
        dX = back.op(back.node.op_type, back.dY, back.x(1), nothing, **attributes)
    if back.needs(2):
        dupdates = picked(back.dY)
        if reduction == "none" and back.tie == "last":
            numbers = _numbered(back, back.x(2))
            nobody = zeros(back, shape_of(back, back.x(0)), ir.DataType.INT64)
            last = picked(back.op(back.node.op_type, nobody, back.x(1), numbers, **attributes))
            dupdates = back.kept(back.op("Equal", last, numbers), dupdates)
    return [dX, None, dupdates]


def _numbered(back: Backward, value: ir.Value) -> ir.Value:
    """Returns the numbers of the elements of a value, in its shape."""
    numbers = back.op(
        "Range", back.constant(0, ir.DataType.INT64), back.op("Size", value), back.constant(1, ir.DataType.INT64)
    )
    return back.op("Reshape", numbers, shape_of(back, value))


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
