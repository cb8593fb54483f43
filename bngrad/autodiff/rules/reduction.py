"""Reductions, global pooling among them.

The gradient of a sum goes to every element that was summed; the gradient of an extreme to the elements that are
equal to it, in equal shares.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bngrad.autodiff.rule import gradient
from bngrad.autodiff.rules.unary import of_absolute
from bngrad.graph.batch_norm_terms import cast_like, statistics_dtype
from bngrad.graph.constant_value import constant_value
from bngrad.graph.guards import first_order, zero_where_zero
from bngrad.graph.node_reader import dtype_of, like
from bngrad.graph.shapes import zeros
from bngrad.graph.signs import is_singular, may_overflow
from bngrad.opset.op_attributes import REDUCTION

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients


@gradient("ReduceSum", versions=(13,), attributes=REDUCTION)
def reduce_sum(back: Backward) -> Gradients:
    """dX = dY."""
    return [_spread(back, back.dY)]


@gradient("GlobalAveragePool", versions=(1, 22))
@gradient("ReduceMean", versions=(18,), attributes=REDUCTION)
def reduce_mean(back: Backward) -> Gradients:
    """dX = dY / M, where each element of the result is the mean of M. Also for GlobalAveragePool."""
    dtype = statistics_dtype(back.x(0))
    elements = _elements(back)
    if elements is None:
        # In floating point: an integer division by zero, for empty inputs and outputs, is a crash.
        whole, reduced = (back.op("Cast", back.op("Size", v), to=int(dtype)) for v in (back.x(0), back.y()))
        count = back.op("Div", whole, reduced)
    else:
        count = back.constant(elements, dtype)
    return [_spread(back, back.microsoft("Scale", back.dY, count, scale_down=1))]


@gradient("GlobalMaxPool", versions=(1, 22))
@gradient("ReduceMax", versions=(18, 20), attributes=REDUCTION)
@gradient("ReduceMin", versions=(18, 20), attributes=REDUCTION)
def reduce_extreme(back: Backward) -> Gradients:
    """dX = dY / n at the n elements equal to Y; or dY at the first of them, by the framework's convention."""
    axes = _known_axes(back)
    if back.tie == "first" and axes != []:
        if axes is None:
            back.refuse(
                "its axes or its rank are not known, and its gradient goes only to the first largest element"
            )
        return [_to_the_first(back, axes)]
    x, y, dY = back.x(0), _kept(back, back.y()), _kept(back, back.dY)
    dtype = statistics_dtype(x)
    hit = back.op("Equal", x, y)
    share = back.op("Div", back.cast(dY, dtype), _sum_again(back, back.cast(hit, dtype)))
    share.dtype = dtype
    return [cast_like(back, back.kept(hit, share, singular=may_overflow(x)), dtype, x)]


def _to_the_first(back: Backward, axes: list[int]) -> ir.Value:
    """Returns dY for the first largest or smallest of the elements along some axes, else 0."""
    x, rank, dtype, dY = back.x(0), back.rank(back.x(0)), statistics_dtype(back.x(0)), back.dY
    axes = sorted(axis % rank for axis in axes)
    order = [*(axis for axis in range(rank) if axis not in axes), *axes]
    moved = back.op("Transpose", back.cast(x, dtype), perm=order)
    rows = back.op("Reshape", moved, back.int64([0] * (rank - len(axes)) + [-1]))
    first = back.op("ArgMin" if back.node.op_type == "ReduceMin" else "ArgMax", rows, axis=-1, keepdims=1)
    nothing = zeros(back, back.op("Shape", rows), dtype_of(dY))
    hit = back.op("ScatterElements", nothing, first, back.op("Reshape", dY, back.op("Shape", first)), axis=-1)
    hit = back.op("Reshape", hit, back.op("Shape", moved))
    return back.op("Transpose", hit, perm=[order.index(axis) for axis in range(rank)])


@gradient("ReduceL1", versions=(18,), attributes=REDUCTION)
def reduce_l1(back: Backward) -> Gradients:
    """dX = dY sign X, as for Abs."""
    _refuse_nothing_reduced(back)
    return [of_absolute(back, _kept(back, back.dY))]


@gradient("ReduceL2", versions=(18,), attributes=REDUCTION)
def reduce_l2(back: Backward) -> Gradients:
    """dX = dY X / Y; 0 where Y is 0."""
    _refuse_nothing_reduced(back)
    y = back.y()
    length = back.op("Where", back.op("Equal", y, like(back, 0, y)), like(back, 1, y), y)
    return [back.times(_typed(_kept(back, back.op("Div", back.dY, length)), y), back.x(0))]


@gradient("ReduceSumSquare", versions=(18,), attributes=REDUCTION)
def reduce_sum_square(back: Backward) -> Gradients:
    """dX = 2 dY X."""
    _refuse_nothing_reduced(back)
    twice = back.op("Mul", back.dY, like(back, 2, back.dY))
    return [back.times(_typed(_kept(back, twice), back.dY), back.x(0))]


@gradient("ReduceLogSum", versions=(18, 28), attributes=REDUCTION)
def reduce_log_sum(back: Backward) -> Gradients:
    """dX = dY / exp(Y)."""
    _refuse_nothing_reduced(back)
    quotient = back.op("Div", back.dY, back.op("Exp", back.y()))
    return [_spread(back, zero_where_zero(back, back.dY, quotient) if is_singular(back.node) else quotient)]


@gradient("ReduceLogSumExp", versions=(18, 28), attributes=REDUCTION)
def reduce_log_sum_exp(back: Backward) -> Gradients:
    """dX = dY exp(X - Y), which may be NaN where X and Y are -inf."""
    _refuse_nothing_reduced(back)
    share = back.op("Exp", back.op("Sub", back.x(0), _kept(back, back.y())))
    return [back.times(_kept(back, back.dY), share, singular=True)]


@gradient("ReduceProd", versions=(18,), attributes=REDUCTION)
def reduce_prod(back: Backward) -> Gradients:
    """dX = dY times the product of the other elements, which is 0 where one of them is 0."""
    x, dY = back.x(0), _kept(back, back.dY)
    is_zero = back.op("Equal", x, like(back, 0, x))
    rest = first_order(back.op("Where", is_zero, like(back, 1, x), x))
    zero = back.op("Cast", is_zero, to=int(statistics_dtype(x)))
    alone = back.op("Equal", _sum_again(back, zero), zero)
    others = back.op("Div", _reduced_again(back, "ReduceProd", rest), rest)
    return [back.times(dY, back.op("Where", alone, others, like(back, 0, x)), singular=True)]


def _spread(back: Backward, gradient: ir.Value) -> ir.Value:
    """Repeats a gradient in the shape of the output to the shape of the input."""
    return back.op("Expand", _kept(back, gradient), back.op("Shape", back.x(0)))


def _kept(back: Backward, value: ir.Value) -> ir.Value:
    """Reshapes a value in the shape of the output so that it broadcasts to the shape of the input."""
    if back.attribute("keepdims", 1) or not back.has(1) or back.known_int64(1) == []:
        return value
    return _typed(back.op("Unsqueeze", value, back.x(1)), value)


def _typed(value: ir.Value, as_: ir.Value) -> ir.Value:
    if as_.dtype is not None:
        value.dtype = as_.dtype
    return value


def _sum_again(back: Backward, value: ir.Value) -> ir.Value:
    return _reduced_again(back, "ReduceSum", value)


def _reduced_again(back: Backward, op_type: str, value: ir.Value) -> ir.Value:
    """Reduces a value in the shape of the input as the input was reduced, but keeps its dimensions."""
    noop = back.attribute("noop_with_empty_axes", 0)
    if back.has(1):
        return back.op(op_type, value, back.x(1), keepdims=1, noop_with_empty_axes=noop)
    if _is_pooling(back):
        return back.op(op_type, value, back.int64(list(range(2, back.rank(back.x(0))))), keepdims=1)
    return back.op(op_type, value, keepdims=1, noop_with_empty_axes=noop)


def _elements(back: Backward) -> int | None:
    """Returns the number of elements that are reduced to one; None if it is known only at run time."""
    shape, axes = back.x(0).shape, _known_axes(back)
    if shape is None or axes is None:
        return None
    dimensions = [shape[axis] for axis in axes]
    sizes = [size for size in dimensions if isinstance(size, int)]
    return math.prod(sizes) if len(sizes) == len(dimensions) else None


def _known_axes(back: Backward) -> list[int] | None:
    """Returns the axes that are reduced; None if they are known only at run time."""
    shape, axes = back.x(0).shape, back.known_int64(1) if back.has(1) else []
    if axes is None and (computed := constant_value(back.x(1))) is not None:
        axes = [int(axis) for axis in computed.numpy().ravel()]
    if shape is None or axes is None:
        return None
    if _is_pooling(back):
        axes = list(range(2, len(shape)))
    elif not axes and not back.attribute("noop_with_empty_axes", 0):
        axes = list(range(len(shape)))
    return axes


def _is_pooling(back: Backward) -> bool:
    return back.node.op_type.startswith("Global")


def _refuse_nothing_reduced(back: Backward) -> None:
    """Refuses a node that may reduce over no axes: some runtimes return its input, others compute the rest."""
    if back.attribute("noop_with_empty_axes", 0) and not (back.has(1) and back.known_int64(1)):
        back.refuse("it has noop_with_empty_axes = 1 and no constant axes; expected axes")
