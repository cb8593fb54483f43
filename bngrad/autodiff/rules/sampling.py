"""AffineGrid, and GridSample: samples at computed places, by polynomial weights of the elements around each.

Along each axis, the elements around a place c are floor(c) + k for k in the taps; their weights are polynomials
of c - floor(c). Elements outside of X are zeros or elements of X, depending on padding_mode, as in PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx_ir as ir

from bngrad.autodiff.rule import gradient
from bngrad.graph.batch_norm_terms import cast_like, statistics_dtype
from bngrad.graph.guards import zero_where_zero
from bngrad.graph.shapes import dimension_of, known_dimension, shape_of, zeros
from bngrad.opset.op_attributes import FLAG

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients

_A = -0.75
"""The parameter of cubic convolution."""

_KERNELS = {
    "nearest": ([0], [[1]]),
    "linear": ([0, 1], [[1, 0], [-1, 1]]),
    "cubic": (
        [-1, 0, 1, 2],
        [[0, 1, 0, 0], [_A, 0, -_A, 0], [-2 * _A, -_A - 3, 2 * _A + 3, _A], [_A, _A + 2, -_A - 2, -_A]],
    ),
}
"""The taps of each mode, and the coefficients of their weights by powers of c - floor(c)."""

_MODES = {"nearest": "nearest", "bilinear": "linear", "linear": "linear", "bicubic": "cubic", "cubic": "cubic"}


class _Axis(NamedTuple):
    """The samples along one axis; the dimensions of taps of the other axes are 1."""

    element: ir.Value
    """The element of X, int64."""
    weight: ir.Value
    slope: ir.Value
    """The derivative of the weight with respect to the grid."""


@gradient(
    "GridSample",
    inputs=(0, 1),
    versions=(16, 20, 22),
    attributes={
        "align_corners": FLAG,
        "mode": tuple(_MODES),
        "padding_mode": ("zeros", "border", "reflection"),
    },
)
def grid_sample(back: Backward) -> Gradients:
    """dX = the sums of dY w at the elements of each sample; dgrid = the sums of dY X dw/dgrid.

    w is the product of the weights along all axes. In mode nearest the gradient with respect to the grid is 0.
    """
    x, grid, rank = back.x(0), back.x(1), back.rank(back.x(0)) - 2
    dtype = statistics_dtype(x)
    axes = [_axis(back, axis, rank, dtype) for axis in range(rank)]
    index = axes[0].element
    for axis, samples in enumerate(axes[1:], 1):
        index = back.op("Add", back.op("Mul", index, dimension_of(back, x, 2 + axis)), samples.element)
    flat = back.op("Flatten", index, axis=1)  # [N, samples and taps]
    lead = back.op("Concat", dimension_of(back, x, 0), dimension_of(back, x, 1), axis=0)
    picked = back.op("Concat", lead, back.op("Shape", flat, start=1), axis=0)
    indices = back.op("Expand", back.op("Unsqueeze", flat, back.int64([1])), picked)
    sizes = back.op("Slice", shape_of(back, x), back.int64([2]), back.int64([rank + 2]))
    line = back.op("Concat", lead, back.op("ReduceProd", sizes, keepdims=1), axis=0)
    dY = back.op("Unsqueeze", back.cast(back.dY, dtype), _last(back, rank))

    dX = dgrid = None
    if back.needs(0):
        weight = back.op("Unsqueeze", _product(back, [samples.weight for samples in axes]), back.int64([1]))
        updates = back.op("Mul", dY, weight)
        if back.unbounded:
            updates = zero_where_zero(back, weight, updates, typed=back.constant(0, dtype))
        updates = back.op("Reshape", updates, picked, allowzero=1)
        nothing = zeros(back, line, dtype)
        sums = back.op("ScatterElements", nothing, indices, updates, axis=2, reduction="add")
        dX = cast_like(back, back.op("Reshape", sums, shape_of(back, x), allowzero=1), dtype, x)
    if back.needs(1) and _mode(back) != "nearest":
        elements = back.op("Reshape", back.cast(x, dtype), line, allowzero=1)
        elements = back.op("GatherElements", elements, indices, axis=2)
        taps = back.int64([len(_KERNELS[_mode(back)][0])] * rank)
        shape = back.op("Concat", back.op("Shape", back.dY), taps, axis=0)
        product = back.op("Mul", dY, back.op("Reshape", elements, shape, allowzero=1))
        product = back.op("ReduceSum", product, back.int64([1]), keepdims=0)
        parts = []
        for axis, samples in enumerate(axes):
            others = [other.weight for number, other in enumerate(axes) if number != axis]
            slope = _product(back, [samples.slope, *others])
            part = back.op("Mul", product, slope)
            if back.unbounded:
                part = zero_where_zero(back, slope, part, typed=back.constant(0, dtype))
            part = back.op("ReduceSum", part, _last(back, rank), keepdims=0)
            parts.append(back.op("Unsqueeze", part, back.int64([-1])))
        dgrid = cast_like(back, back.op("Concat", *reversed(parts), axis=-1), dtype, grid)
    return [dX, dgrid]


@gradient("AffineGrid", versions=(20,), attributes={"align_corners": FLAG})
def affine_grid(back: Backward) -> Gradients:
    """dtheta = the sum of dY [p, 1]^T over all places p, which are the op's result for a unit matrix."""
    theta = back.x(0)
    columns = known_dimension(theta, -1)
    if columns is None:
        back.refuse("the last dimension of its theta is not known; expected a number")
    rank, dtype, dY = columns - 1, statistics_dtype(theta), back.op("Unsqueeze", back.dY, back.int64([-1]))
    dY = back.cast(dY, dtype)
    spatial = back.op("Slice", back.x(1), back.int64([1]), back.int64([columns + 1]))
    size = back.op("Concat", back.int64([1]), spatial, axis=0)
    unit = back.constant(np.eye(rank, columns)[None], dtype)
    places = back.op("AffineGrid", unit, size, align_corners=back.attribute("align_corners", 0))
    places = back.op("Unsqueeze", places, back.int64([-2]))
    product = back.op("Mul", dY, places)
    if back.unbounded:
        product = zero_where_zero(back, places, product, typed=back.constant(0, dtype))
    axes = back.int64(list(range(1, columns)))
    sums = [back.op("ReduceSum", value, axes, keepdims=0) for value in (product, dY)]
    return [cast_like(back, back.op("Concat", *sums, axis=-1), dtype, theta)]


def _mode(back: Backward) -> str:
    return _MODES[back.attribute("mode", "linear")]


def _axis(back: Backward, axis: int, rank: int, dtype: ir.DataType) -> _Axis:
    """Returns the samples along a spatial axis of X; the grid has the axes in reverse order."""
    taps, coefficients = _KERNELS[_mode(back)]
    align = bool(back.attribute("align_corners", 0))

    def number(value: ArrayLike) -> ir.Value:
        return back.constant(value, dtype)

    size = back.op("Cast", dimension_of(back, back.x(0), 2 + axis), to=int(dtype))
    place = back.cast(back.op("Gather", back.cast(back.x(1), dtype), back.int64(rank - 1 - axis), axis=-1), dtype)
    place = back.op("Add", place, number(1))
    last = back.op("Sub", size, number(1))
    if align:  # -1 and 1 are the first and the last element, else the ends of X
        scale = back.op("Mul", last, number(0.5))
        place = back.op("Mul", back.op("Mul", place, number(0.5)), last)
    else:
        scale = back.op("Mul", size, number(0.5))
        place = back.op("Mul", back.op("Sub", back.op("Mul", place, size), number(1)), number(0.5))
    derivative = None
    if _mode(back) == "linear" and back.attribute("padding_mode", "zeros") != "zeros":
        place, derivative = _into_x(back, place, size, last, dtype)
    begin = back.op("Round" if _mode(back) == "nearest" else "Floor", place)
    own = [1 + rank + other for other in range(rank) if other != axis]

    def spread(value: ir.Value) -> ir.Value:
        return back.op("Unsqueeze", value, back.int64(own)) if own else value

    element = back.op("Add", back.op("Unsqueeze", begin, back.int64([-1])), number(taps))
    index, inside = _padded(back, element, size, last, dtype, align=align)
    matrix = np.asarray(coefficients, np.float64)
    powers = np.arange(len(matrix), dtype=np.float64)
    within = back.op("Unsqueeze", back.op("Sub", place, begin), back.int64([-1]))
    weight = back.op("MatMul", back.op("Pow", within, number(powers)), number(matrix))
    slope = weight
    if len(matrix) > 1:
        lower = back.op("Pow", within, number(powers[:-1]))
        slope = back.op("Mul", back.op("MatMul", lower, number(powers[1:, None] * matrix[1:])), scale)
    if inside is not None:
        weight, slope = back.op("Mul", weight, inside), back.op("Mul", slope, inside)
    if derivative is not None:
        slope = back.op("Mul", slope, back.op("Unsqueeze", derivative, back.int64([-1])))
    return _Axis(spread(index), spread(weight), spread(slope))


def _padded(
    back: Backward, element: ir.Value, size: ir.Value, last: ir.Value, dtype: ir.DataType, *, align: bool
) -> tuple[ir.Value, ir.Value | None]:
    """Returns the elements of X to read at some positions, and in mode zeros 1 where they are inside, else 0.

    A position that is NaN reads the first element: ONNX Runtime fails at an index outside of X.
    """
    mode, zero, inside = back.attribute("padding_mode", "zeros"), back.constant(0, dtype), None
    if mode == "zeros":
        inside = back.op("And", back.op("GreaterOrEqual", element, zero), back.op("Less", element, size))
        inside = back.op("Cast", inside, to=int(dtype))
    elif mode == "reflection":
        period = back.op("Mul", last if align else size, back.constant(2, dtype))
        if align:
            period = back.op("Max", period, back.constant(1, dtype))
        turns = back.op("Floor", back.op("Div", element, period))
        there = back.op("Sub", element, back.op("Mul", turns, period))
        again = back.op("Sub", period, there)
        if not align:
            again = back.op("Sub", again, back.constant(1, dtype))
        element = back.op("Min", there, again)
    positive = back.op("GreaterOrEqual", element, zero)
    index = back.op("Where", positive, back.op("Min", element, last), zero)
    return back.op("Cast", index, to=int(ir.DataType.INT64)), inside


def _into_x(
    back: Backward, place: ir.Value, size: ir.Value, last: ir.Value, dtype: ir.DataType
) -> tuple[ir.Value, ir.Value]:
    """Returns a place, clipped or reflected to between the first and the last element, and its derivative.

    As in PyTorch, the derivative of what is clipped is 0, at the first and the last element, too.
    """
    zero, unit, sign = back.constant(0, dtype), back.constant(1, dtype), None
    if back.attribute("padding_mode", "zeros") == "reflection":
        align = bool(back.attribute("align_corners", 0))
        first = back.constant(0 if align else -0.5, dtype)
        span = back.op("Max", last if align else size, unit)
        beyond = back.op("Sub", place, first)
        distance = back.op("Abs", beyond)
        turns = back.op("Floor", back.op("Div", distance, span))
        rest = back.op("Sub", distance, back.op("Mul", turns, span))
        half = back.op("Mul", turns, back.constant(0.5, dtype))
        is_even = back.op("Equal", back.op("Floor", half), half)
        place = back.op("Add", back.op("Where", is_even, rest, back.op("Sub", span, rest)), first)
        negative = back.op("Less", beyond, zero)
        sign = back.op("Where", back.op("Xor", is_even, negative), unit, back.constant(-1, dtype))
    between = back.op("And", back.op("Greater", place, zero), back.op("Less", place, last))
    derivative = back.op("Cast", between, to=int(dtype))
    place = back.op("Min", back.op("Max", place, zero), last)
    return place, derivative if sign is None else back.op("Mul", derivative, sign)


def _last(back: Backward, count: int) -> ir.Value:
    """Returns the indices of the last axes."""
    return back.int64(list(range(-count, 0)))


def _product(back: Backward, values: Sequence[ir.Value]) -> ir.Value:
    result = values[0]
    for value in values[1:]:
        result = back.op("Mul", result, value)
    return result
