"""Ops that put updates into a copy of X, or combine them with its elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import onnx_ir as ir

from bngrad.autodiff.rule import gradient
from bngrad.graph.batch_norm_terms import cast_like, statistics_dtype
from bngrad.graph.guards import first_order
from bngrad.graph.node_reader import dtype_of, like
from bngrad.graph.shapes import dimension_of, known_dimension, shape_of, zeros
from bngrad.graph.signs import may_overflow
from bngrad.opset.op_attributes import AXIS, SCATTER

if TYPE_CHECKING:
    from collections.abc import Callable

    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients


@gradient("ScatterElements", inputs=(0, 2), versions=(18,), attributes={**AXIS, **SCATTER})
def scatter_elements(back: Backward) -> Gradients:
    """dX = dY, except 0 where updates replaced X; dupdates = dY there.

    For other reductions see `_combined`.
    """
    axis = back.attribute("axis", 0)
    if back.attribute("reduction", "none") in _COMBINED:
        return _combined(back, _Places(back, back.x(1), axis), None)
    return _replaced(back, {"axis": axis}, lambda values: back.op("GatherElements", values, back.x(1), axis=axis))


@gradient("ScatterND", inputs=(0, 2), versions=(18,), attributes=SCATTER)
def scatter_nd(back: Backward) -> Gradients:
    """dX = dY, except 0 where updates replaced X; dupdates = dY there, by whole indices.

    For other reductions see `_combined`. X is seen as rows there, one for each index that there can be: ONNX
    Runtime's ScatterND, unlike its ScatterElements, may lose updates of equal indices.
    """
    if back.attribute("reduction", "none") not in _COMBINED:
        return _replaced(back, {}, lambda values: back.op("GatherND", values, back.x(1)))
    indices = back.x(1)
    length = known_dimension(indices, -1)
    if length is None:
        back.refuse("the last dimension of its indices is not known; expected a number")
    sizes = back.op("Slice", shape_of(back, back.x(0)), back.int64([0]), back.int64([length]))
    count = back.op("ReduceProd", sizes, keepdims=0)
    numbers = back.op("Reshape", back.op("Range", back.int64(0), count, back.int64(1)), sizes, allowzero=1)
    rows = back.op("Reshape", back.op("GatherND", numbers, indices), back.int64([-1, 1]))
    axes = (length, back.rank(indices) - 1)
    updates = back.op("Flatten", back.x(2), axis=axes[1])
    return _combined(back, _Places(back, back.op("Expand", rows, back.op("Shape", updates)), 0), axes)


@gradient("TensorScatter", inputs=(0, 1), versions=(24,), attributes={**AXIS, "mode": ("linear", "circular")})
def tensor_scatter(back: Backward) -> Gradients:
    """dX = dY, except 0 where the update replaced X; dupdate = dY there: from the index of each sample on."""
    x, update, axis = back.x(0), back.x(1), back.attribute("axis", -2)
    dX = dupdate = None
    if back.needs(0):
        nothing = zeros(back, shape_of(back, update), dtype_of(update))
        dX = back.op("TensorScatter", back.dY, nothing, *back.node.inputs[2:], **back.attributes())
    length = dimension_of(back, update, axis)
    if back.needs(1) and not back.has(2):
        dupdate = back.op("Slice", back.dY, back.int64([0]), length, back.int64([axis]))
    elif back.needs(1):
        numbers = back.op("Range", back.int64(0), back.op("Squeeze", length, back.int64([0])), back.int64(1))
        places = back.op("Add", back.op("Unsqueeze", back.x(2), back.int64([1])), numbers)
        if back.attribute("mode", "linear") == "circular":
            places = back.op("Mod", places, dimension_of(back, x, axis))
        rank = back.rank(update)
        others = [other for other in range(1, rank) if other != axis % rank]
        if others:
            places = back.op("Unsqueeze", places, back.int64(others))
        places = back.op("Expand", places, shape_of(back, update))
        dupdate = back.op("GatherElements", back.dY, places, axis=axis)
    return [dX, dupdate, None]


def _replaced(back: Backward, attributes: dict[str, int], picked: Callable[[ir.Value], ir.Value]) -> Gradients:
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


class _Places(NamedTuple):
    """The elements of X that updates go to."""

    back: Backward
    indices: ir.Value
    axis: int

    def read(self, values: ir.Value) -> ir.Value:
        """Returns the elements there of values in the shape of X."""
        result = self.back.op("GatherElements", values, self.indices, axis=self.axis)
        result.dtype = dtype_of(values)
        return result

    def combine(self, values: ir.Value, updates: ir.Value, reduction: str) -> ir.Value:
        """Returns values in the shape of X, combined with updates there."""
        result = self.back.op(
            "ScatterElements", values, self.indices, updates, axis=self.axis, reduction=reduction
        )
        result.dtype = dtype_of(values)
        return result


def _combined(back: Backward, places: _Places, rows: tuple[int, int] | None) -> Gradients:
    """Gradients of the reductions mul, max and min, in float for the 16-bit types, for which there are no kernels.

    Args:
        back: The node.
        places: The elements that the updates go to.
        rows: The axes at which X and the updates are flattened to rows, where the places are those of rows.
    """
    dtype = statistics_dtype(back.x(0))

    def operand(value: ir.Value, kind: int = 0) -> ir.Value:
        result = back.cast(value, dtype)
        if rows is not None:
            result = back.op("Flatten", result, axis=rows[kind])
            result.dtype = dtype
        return result

    def of_input(index: int, gradient: ir.Value | None) -> ir.Value | None:
        if gradient is None:
            return None
        value = back.x(index)
        if rows is not None:
            gradient = back.op("Reshape", gradient, shape_of(back, value), allowzero=1)
        return cast_like(back, gradient, dtype, value)

    rule = _COMBINED[back.attribute("reduction", "none")]
    dX, dupdates = rule(back, places, operand(back.x(0)), operand(back.x(2), 1), operand(back.dY))
    return [of_input(0, dX), None, of_input(2, dupdates)]


def _multiplied(
    back: Backward, places: _Places, x: ir.Value, updates: ir.Value, dY: ir.Value
) -> tuple[ir.Value | None, ir.Value | None]:
    """Each gets dY times the product of the other factors, which is 0 where one of them is 0."""
    dX = dupdates = None
    unit, zero = like(back, 1, x), like(back, 0, x)
    if back.needs(0):
        ones = back.op("Expand", unit, back.op("Shape", x))
        ones.dtype = dtype_of(x)
        dX = back.times(dY, places.combine(ones, updates, "mul"), singular=True)
    if back.needs(2):
        is_zero = back.op("Equal", updates, zero)
        mine = back.cast(is_zero, dtype_of(x))
        count = places.read(places.combine(zeros(back, back.op("Shape", x), dtype_of(x)), mine, "add"))
        rest = first_order(back.op("Where", is_zero, unit, updates))
        others = back.op("Div", places.read(places.combine(x, rest, "mul")), rest)
        factor = back.op("Where", back.op("Equal", count, mine), others, zero)
        dupdates = back.times(places.read(dY), factor, singular=True)
    return dX, dupdates


def _chosen(
    back: Backward, places: _Places, x: ir.Value, updates: ir.Value, dY: ir.Value
) -> tuple[ir.Value | None, ir.Value | None]:
    """Each of those equal to Y, X among them, gets an equal share of dY, as in PyTorch and TensorFlow."""
    y = places.combine(x, updates, back.attribute("reduction", "none"))
    hits = [back.op("Equal", x, y), back.op("Equal", updates, places.read(y))]
    mine, theirs = (back.cast(hit, dtype_of(x)) for hit in hits)
    share = back.op("Div", dY, places.combine(mine, theirs, "add"))
    share.dtype = dtype_of(x)
    singular = any(may_overflow(value) for value in (back.x(0), back.x(2)))  # no operand equals a NaN
    return (
        back.kept(hits[0], share, singular=singular) if back.needs(0) else None,
        back.kept(hits[1], places.read(share), singular=singular) if back.needs(2) else None,
    )


_COMBINED = {"mul": _multiplied, "max": _chosen, "min": _chosen}
