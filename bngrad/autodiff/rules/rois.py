"""RoiAlign and MaxRoiPool.

RoiAlign takes samples of an image on a grid in each bin of a region, by bilinear weights of the elements around.
The weights of both axes are independent, so that an average is a product of matrices, one for each axis.
MaxRoiPool takes the largest element of each bin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx_ir as ir

from bngrad.autodiff.rule import gradient
from bngrad.graph.batch_norm_terms import cast_like, statistics_dtype
from bngrad.graph.shapes import dimension_of, shape_of, zeros
from bngrad.opset.op_attributes import ANY

if TYPE_CHECKING:
    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients


class _Samples(NamedTuple):
    """The samples along an axis, [regions, bins, samples]; all regions have as many as the largest."""

    place: ir.Value
    """The place in X, within it."""
    inside: ir.Value
    """False for a sample that counts as 0."""
    exists: ir.Value
    """False for one that the region does not have."""
    total: ir.Value
    """The number of samples of each bin, [regions, 1, 1]; at least 1."""
    last: ir.Value
    """The last element of X."""


@gradient(
    "RoiAlign",
    versions=(16, 22),
    attributes={
        "coordinate_transformation_mode": ("half_pixel", "output_half_pixel"),
        "mode": ("avg", "max"),
        **dict.fromkeys(("output_height", "output_width", "sampling_ratio", "spatial_scale"), ANY),
    },
)
def roi_align(back: Backward) -> Gradients:
    """dX = the sum over regions of A^T dY B, where Y = A X B^T; A and B average the samples of an axis.

    In mode max, Y is the largest product of an element and its weight, and dX is dY times the weight there.
    """
    dtype = statistics_dtype(back.x(0))
    rows, columns = (_samples(back, axis, dtype) for axis in (2, 3))
    dX = _averaged if back.attribute("mode", "avg") == "avg" else _largest
    return [cast_like(back, dX(back, rows, columns, dtype), dtype, back.x(0)), None, None]


def _samples(back: Backward, axis: int, dtype: ir.DataType) -> _Samples:
    """Returns the samples along an axis of X, computed in the order of ONNX Runtime's kernel."""
    bins = back.attribute("output_height" if axis == 2 else "output_width", 1)
    ratio = back.attribute("sampling_ratio", 0)
    half = back.attribute("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    rois = back.cast(back.x(1), dtype)

    def number(value: object) -> ir.Value:
        return back.constant(value, dtype)

    def numbers(count: ir.Value) -> ir.Value:
        return back.op("Cast", back.op("Range", back.int64(0), count, back.int64(1)), to=int(dtype))

    def end(column: int) -> ir.Value:
        edge = back.op("Gather", rois, back.int64([column]), axis=1)
        scaled = back.op("Mul", edge, number(back.attribute("spatial_scale", 1.0)))
        return back.op("Unsqueeze", back.op("Sub", scaled, number(0.5)) if half else scaled, back.int64([-1]))

    start = end(3 - axis)
    size = back.op("Sub", end(5 - axis), start)
    if not half:
        size = back.op("Max", size, number(1))
    bin_size = back.op("Div", size, number(bins))
    if ratio > 0:
        count, most = number([[[ratio]]]), back.int64(ratio)
    else:
        count = back.op("Ceil", bin_size)
        flat = back.op("Concat", back.op("Reshape", count, back.int64([-1])), number([1]), axis=0)
        most = back.op("Cast", back.op("ReduceMax", flat, keepdims=0), to=int(ir.DataType.INT64))
    sample = numbers(most)
    exists = back.op("Less", sample, count)
    count = back.op("Max", count, number(1))
    first = back.op("Add", start, back.op("Mul", number(np.arange(bins)[:, None]), bin_size))
    within = back.op("Div", back.op("Mul", back.op("Add", sample, number(0.5)), bin_size), count)
    place = back.op("Add", first, within)
    length = back.op("Cast", dimension_of(back, back.x(0), axis), to=int(dtype))
    last = back.op("Sub", length, number(1))
    around = back.op("GreaterOrEqual", place, number(-1)), back.op("LessOrEqual", place, length)
    place = back.op("Max", back.op("Min", place, last), number(0))
    return _Samples(place, back.op("And", *around), exists, count, last)


def _averaged(back: Backward, rows: _Samples, columns: _Samples, dtype: ir.DataType) -> ir.Value:
    """Returns dX of mode avg: dY B for each region, and one product with A^T for all of them."""
    x = back.x(0)
    sizes = [dimension_of(back, x, axis) for axis in range(4)]
    a, b = _matrix(back, rows, 2, dtype), _matrix(back, columns, 3, dtype)
    spread = back.op("MatMul", back.cast(back.dY, dtype), back.op("Unsqueeze", b, back.int64([1])))
    spread = back.op("Transpose", spread, perm=[1, 0, 2, 3])
    bins = back.op("Mul", dimension_of(back, back.x(1), 0), back.int64([back.attribute("output_height", 1)]))
    spread = back.op("Reshape", spread, back.op("Concat", sizes[1], bins, sizes[3], axis=0), allowzero=1)
    images = back.op("Range", back.int64(0), back.op("Squeeze", sizes[0], back.int64([0])), back.int64(1))
    mine = back.op("Equal", back.op("Unsqueeze", images, back.int64([1, 2, 3])), _by_region(back, 1))
    parts = back.op("Mul", back.op("Cast", mine, to=int(dtype)), back.op("Transpose", a, perm=[2, 0, 1]))
    heights = back.op("Mul", sizes[0], sizes[2])
    parts = back.op("Reshape", parts, back.op("Concat", heights, bins, axis=0), allowzero=1)
    total = back.op("MatMul", parts, spread)
    shape = back.op("Concat", *(sizes[axis] for axis in (1, 0, 2, 3)), axis=0)
    total = back.op("Reshape", total, shape, allowzero=1)
    return back.op("Transpose", total, perm=[1, 0, 2, 3])


def _by_region(back: Backward, trailing: int) -> ir.Value:
    """Returns the image of each region, with as many dimensions of 1 after it."""
    return back.op("Unsqueeze", back.x(2), back.int64(list(range(1, trailing + 1))))


def _matrix(back: Backward, samples: _Samples, axis: int, dtype: ir.DataType) -> ir.Value:
    """Returns the weights in the average of each bin of the elements along an axis, [regions, bins, elements]."""
    zero, unit = back.constant(0, dtype), back.constant(1, dtype)
    length = back.op("Squeeze", dimension_of(back, back.x(0), axis), back.int64([0]))
    elements = back.op("Cast", back.op("Range", back.int64(0), length, back.int64(1)), to=int(dtype))
    distance = back.op("Abs", back.op("Sub", back.op("Unsqueeze", samples.place, back.int64([-1])), elements))
    counts = back.op("Unsqueeze", back.op("And", samples.inside, samples.exists), back.int64([-1]))
    weight = back.op("Where", counts, back.op("Max", back.op("Sub", unit, distance), zero), zero)
    return back.op("Div", back.op("ReduceSum", weight, back.int64([2]), keepdims=0), samples.total)


def _largest(back: Backward, rows: _Samples, columns: _Samples, dtype: ir.DataType) -> ir.Value:
    """Returns dX of mode max.

    The samples are [regions, rows, columns, samples, 2, samples, 2], with the two elements around a sample along
    each axis.
    """
    places = [[2, 5, 6], [1, 3, 4]]  # the dimensions of the other axis
    row, column = (
        [back.op("Unsqueeze", value, back.int64(other)) for value in _taps(back, samples, dtype)]
        for samples, other in zip((rows, columns), places, strict=True)
    )
    index = _flat(back, _by_region(back, 6), row[0], column[0])
    exists = back.op("And", row[2], column[2])
    weight = back.op("Where", exists, back.op("Mul", row[1], column[1]), back.constant(0, dtype))
    return _at_largest(back, index, weight, back.op("Expand", exists, back.op("Shape", weight)), dtype)


def _flat(back: Backward, image: ir.Value, row: ir.Value, column: ir.Value) -> ir.Value:
    """Returns the number of an element of X among the elements of a channel in all images."""
    index = back.op("Add", back.op("Mul", image, dimension_of(back, back.x(0), 2)), row)
    return back.op("Add", back.op("Mul", index, dimension_of(back, back.x(0), 3)), column)


def _at_largest(
    back: Backward, index: ir.Value, weight: ir.Value, exists: ir.Value, dtype: ir.DataType
) -> ir.Value:
    """Returns dX, the sum of dY times the weight of the element whose product with its weight is the largest.

    The elements are [regions, rows, columns, ...]. Flattened, they have a row for each bin; X and dY have the
    channels last.
    """
    x = back.x(0)
    index, weight, exists = (back.op("Flatten", value, axis=3) for value in (index, weight, exists))
    pixels, dY = (
        back.op("Flatten", back.op("Transpose", back.cast(value, dtype), perm=[0, 2, 3, 1]), axis=3)
        for value in (x, back.dY)
    )
    elements = back.op("Gather", pixels, index)
    shape = back.op("Shape", elements)
    index, weight, exists = (back.op("Unsqueeze", value, back.int64([-1])) for value in (index, weight, exists))
    product = back.op("Where", exists, back.op("Mul", weight, elements), back.constant(-np.inf, dtype))
    largest = back.op("ArgMax", product, axis=1)
    index, weight = (
        back.op(
            "Squeeze", back.op("GatherElements", back.op("Expand", value, shape), largest, axis=1), back.int64([1])
        )
        for value in (index, weight)
    )
    nothing = zeros(back, back.op("Shape", pixels), dtype)
    total = back.op("ScatterElements", nothing, index, back.op("Mul", dY, weight), axis=0, reduction="add")
    sizes = back.op("Gather", shape_of(back, x), back.int64([0, 2, 3, 1]))
    return back.op("Transpose", back.op("Reshape", total, sizes, allowzero=1), perm=[0, 3, 1, 2])


def _taps(back: Backward, samples: _Samples, dtype: ir.DataType) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Returns the two elements around each sample, their weights, and whether the region has it."""
    unit, last_axis = back.constant(1, dtype), back.int64([-1])
    begin = back.op("Floor", samples.place)
    end = back.op("Min", back.op("Add", begin, unit), samples.last)
    share = back.op("Sub", samples.place, begin)
    pairs = [
        back.op("Concat", *(back.op("Unsqueeze", value, last_axis) for value in pair), axis=-1)
        for pair in ((begin, end), (back.op("Sub", unit, share), share))
    ]
    inside = back.op("Unsqueeze", samples.inside, last_axis)
    weight = back.op("Mul", pairs[1], back.op("Cast", inside, to=int(dtype)))
    exists = back.op("Unsqueeze", samples.exists, last_axis)
    return back.op("Cast", pairs[0], to=int(ir.DataType.INT64)), weight, exists


class _Bins(NamedTuple):
    """The elements in each bin along an axis of X, [regions, bins, elements]; as many as in the largest bin."""

    element: ir.Value
    """The element of X, int64; the last one where the bin has fewer."""
    exists: ir.Value


@gradient("MaxRoiPool", versions=(1, 22), attributes={"pooled_shape": ANY, "spatial_scale": ANY})
def max_roi_pool(back: Backward) -> Gradients:
    """dX = the sum over regions of dY at the first largest element of each bin; an empty bin gives none.

    The bins are those of ONNX Runtime's kernel: the edges of a region are rounded, halves away from 0, and its
    last row and column are inside.
    """
    dtype = statistics_dtype(back.x(0))
    rois = back.cast(back.x(1), dtype)
    rows, columns = (_bins(back, rois, axis, dtype) for axis in (2, 3))
    image = back.op("Gather", rois, back.int64([0]), axis=1)
    image = back.op("Unsqueeze", back.cast(image, ir.DataType.INT64), back.int64([2, 3, 4]))
    row, column = (
        [back.op("Unsqueeze", value, back.int64(other)) for value in axis]
        for axis, other in ((rows, [2, 4]), (columns, [1, 3]))
    )
    exists = back.op("And", row[1], column[1])
    dX = _at_largest(
        back, _flat(back, image, row[0], column[0]), back.op("Cast", exists, to=int(dtype)), exists, dtype
    )
    return [cast_like(back, dX, dtype, back.x(0)), None]


def _bins(back: Backward, rois: ir.Value, axis: int, dtype: ir.DataType) -> _Bins:
    """Returns the elements in the bins along an axis of X, computed in the order of ONNX Runtime's kernel."""
    bins = back.attribute("pooled_shape", [1, 1])[axis - 2]

    def number(value: object) -> ir.Value:
        return back.constant(value, dtype)

    def edge(column: int) -> ir.Value:
        scaled = back.op("Gather", rois, back.int64([column]), axis=1)
        scaled = back.op("Mul", scaled, number(back.attribute("spatial_scale", 1.0)))
        size = back.op("Abs", scaled)
        whole = back.op("Floor", size)
        # Not Floor(size + 0.5), which rounds the float below 0.5 up.
        up = back.op("GreaterOrEqual", back.op("Sub", size, whole), number(0.5))
        rounded = back.op("Add", whole, back.op("Cast", up, to=int(dtype)))
        return back.op("Mul", rounded, back.op("Sign", scaled))

    length = back.op("Cast", dimension_of(back, back.x(0), axis), to=int(dtype))

    def within(value: ir.Value) -> ir.Value:
        return back.op("Min", back.op("Max", back.op("Add", value, start), number(0)), length)

    start = edge(4 - axis)
    size = back.op("Add", back.op("Sub", edge(6 - axis), start), number(1))
    bin_size = back.op("Div", back.op("Max", size, number(1)), number(bins))
    begin = within(back.op("Floor", back.op("Mul", number(np.arange(bins)), bin_size)))
    end = within(back.op("Ceil", back.op("Mul", number(np.arange(1, bins + 1)), bin_size)))
    count = back.op("Reshape", back.op("Sub", end, begin), back.int64([-1]))
    most = back.op("ReduceMax", back.op("Concat", count, number([1]), axis=0), keepdims=0)
    most = back.op("Cast", most, to=int(ir.DataType.INT64))
    beyond = back.op("Cast", back.op("Range", back.int64(0), most, back.int64(1)), to=int(dtype))
    element = back.op("Add", back.op("Unsqueeze", begin, back.int64([-1])), beyond)
    exists = back.op("Less", element, back.op("Unsqueeze", end, back.int64([-1])))
    element = back.op("Min", element, back.op("Sub", length, number(1)))
    return _Bins(back.op("Cast", element, to=int(ir.DataType.INT64)), exists)
