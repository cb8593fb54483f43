"""DeformConv: a convolution of samples at computed places, by linear interpolation.

The samples are S[b, c, k, p], of the offset groups b of all images, the channels c of a group, the elements k
of the kernel, and the places p of the output. They are weighted sums of two elements of X for each axis.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx_ir as ir

from bngrad.autodiff.rule import gradient
from bngrad.graph.batch_norm_terms import cast_like, statistics_dtype
from bngrad.graph.shapes import dimension_of, known_dimension, shape_of, zeros
from bngrad.opset.op_attributes import ANY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients


class _Axis(NamedTuple):
    """The elements around the places along one axis: [b, k, p, t of all axes], where those of others are 1."""

    element: ir.Value
    """The element of X, int64."""
    weight: ir.Value
    slope: ir.Value
    """The derivative of the weight with respect to the place."""


class _Sizes(NamedTuple):
    """The sizes of the dimensions, each a vector of one number."""

    images: ir.Value
    groups: ir.Value
    """The images times the offset groups."""
    channels: ir.Value
    """The channels of an offset group."""
    elements: ir.Value
    """The elements of the kernel."""
    places: ir.Value
    group: ir.Value
    """The groups of channels."""
    outputs: ir.Value
    """The output channels of a group."""
    inputs: ir.Value
    """The input channels of a group, times the elements of the kernel."""

    def samples(self, back: Backward) -> ir.Value:
        """Returns the shape of the samples."""
        return _concat(back, self.groups, self.channels, self.elements, self.places)


class _Samples(NamedTuple):
    """The elements of X around all places."""

    back: Backward
    sizes: _Sizes
    axes: list[_Axis]
    weight: ir.Value
    """The product of the weights along all axes, [b, 1, k, p, elements around]."""
    indices: ir.Value
    """The elements in the flat spatial dimensions of X, for each channel."""
    flat: ir.Value
    """The shape of X with flat spatial dimensions, by offset groups."""
    dtype: ir.DataType

    @property
    def rank(self) -> int:
        return len(self.axes)

    def elements(self) -> ir.Value:
        """Returns the elements around the places, [b, c, k, p, elements around]."""
        back, sizes = self.back, self.sizes
        values = back.op("Reshape", back.cast(back.x(0), self.dtype), self.flat, allowzero=1)
        values = back.op("GatherElements", values, self.indices, axis=2)
        shape = _concat(back, sizes.samples(back), back.int64([2**self.rank]))
        return self._typed(back.op("Reshape", values, shape, allowzero=1))

    def of_data(self, dS: ir.Value) -> ir.Value:
        """Returns dX = the sums of dS w at the elements around each place."""
        back = self.back
        updates = back.times(self._typed(back.op("Unsqueeze", dS, back.int64([-1]))), self.weight)
        updates = back.op("Reshape", updates, back.op("Shape", self.indices), allowzero=1)
        nothing = zeros(back, self.flat, self.dtype)
        sums = back.op("ScatterElements", nothing, self.indices, updates, axis=2, reduction="add")
        return _like(back, sums, self.dtype, 0)

    def of_offset(self, dS: ir.Value, elements: ir.Value) -> ir.Value:
        """Returns doffset = the sums of dS X dw/dplace."""
        back, sizes = self.back, self.sizes
        product = back.times(self._typed(back.op("Unsqueeze", dS, back.int64([-1]))), elements)
        product = back.op("ReduceSum", product, back.int64([1]), keepdims=0)
        shape = _concat(back, sizes.groups, sizes.elements, sizes.places, back.int64([2] * self.rank))
        product = self._typed(back.op("Reshape", product, shape, allowzero=1))
        around, parts = back.int64(list(range(3, 3 + self.rank))), []
        for axis, samples in enumerate(self.axes):
            others = [other.weight for number, other in enumerate(self.axes) if number != axis]
            part = back.times(product, _product(back, [samples.slope, *others]))
            part = back.op("ReduceSum", part, around, keepdims=0)
            parts.append(back.op("Unsqueeze", part, back.int64([2])))
        return _like(back, back.op("Concat", *parts, axis=2), self.dtype, 2)

    def _typed(self, value: ir.Value) -> ir.Value:
        value.dtype = self.dtype
        return value


@gradient(
    "DeformConv",
    inputs=(0, 1, 2, 3, 4),
    versions=(19, 22),
    attributes=dict.fromkeys(("dilations", "group", "kernel_shape", "offset_group", "pads", "strides"), ANY),
)
def deform_conv(back: Backward) -> Gradients:
    """dW = dY (S mask)^T; dS = W^T dY mask; dmask = the sum of W^T dY S; dX and doffset are those of the samples.

    The slope at a whole place is that after it, as in PyTorch.
    """
    dtype, kernel = statistics_dtype(back.x(0)), _kernel(back)
    sizes = _sizes(back, kernel)
    around = _samples(back, sizes, kernel, dtype)
    shape = _concat(back, sizes.images, sizes.group, sizes.outputs, sizes.places)
    dY = back.op("Reshape", back.cast(back.dY, dtype), shape, allowzero=1)
    mask = _mask(back, sizes, dtype)

    gradients: list[ir.Value | None] = [None] * 5
    elements = samples = None
    if back.needs(1) or back.needs(2) or back.needs(4):
        elements = around.elements()
        samples = back.op("ReduceSum", back.op("Mul", elements, around.weight), back.int64([-1]), keepdims=0)
    if back.needs(1):
        gradients[1] = _of_weights(
            back, dY, samples if mask is None else back.op("Mul", samples, mask), sizes, dtype
        )
    if back.needs(3):
        places = back.int64([0, *range(2, len(kernel) + 2)])
        gradients[3] = _like(back, back.op("ReduceSum", back.cast(back.dY, dtype), places, keepdims=0), dtype, 3)
    if back.needs(0) or back.needs(2) or back.needs(4):
        flow = _of_columns(back, dY, sizes, dtype)
        if back.needs(4) and samples is not None:
            sums = back.op("ReduceSum", back.times(flow, samples), back.int64([1]), keepdims=0)
            gradients[4] = _like(back, sums, dtype, 4)
        dS = flow if mask is None else back.times(flow, mask)
        if back.needs(0):
            gradients[0] = around.of_data(dS)
        if back.needs(2) and elements is not None:
            gradients[2] = around.of_offset(dS, elements)
    return gradients


def _mask(back: Backward, sizes: _Sizes, dtype: ir.DataType) -> ir.Value | None:
    if not back.has(4):
        return None
    shape = _concat(back, sizes.groups, back.int64([1]), sizes.elements, sizes.places)
    return back.op("Reshape", back.cast(back.x(4), dtype), shape, allowzero=1)


def _of_columns(back: Backward, dY: ir.Value, sizes: _Sizes, dtype: ir.DataType) -> ir.Value:
    """Returns W^T dY, in the shape of the samples."""
    rows = _concat(back, sizes.group, sizes.outputs, sizes.inputs)
    rows = back.op("Reshape", back.cast(back.x(1), dtype), rows, allowzero=1)
    product = back.op("MatMul", back.op("Transpose", rows, perm=[0, 2, 1]), dY)
    result = back.op("Reshape", product, sizes.samples(back), allowzero=1)
    result.dtype = dtype
    return result


def _of_weights(
    back: Backward, dY: ir.Value, samples: ir.Value | None, sizes: _Sizes, dtype: ir.DataType
) -> ir.Value:
    columns = _concat(back, sizes.images, sizes.group, sizes.inputs, sizes.places)
    columns = back.op("Reshape", samples, columns, allowzero=1)
    product = back.op("MatMul", dY, back.op("Transpose", columns, perm=[0, 1, 3, 2]))
    return _like(back, back.op("ReduceSum", product, back.int64([0]), keepdims=0), dtype, 1)


def _like(back: Backward, value: ir.Value, dtype: ir.DataType, index: int) -> ir.Value:
    """Gives a gradient that was computed in a type the shape and type of its input."""
    x = back.x(index)
    return cast_like(back, back.op("Reshape", value, shape_of(back, x), allowzero=1), dtype, x)


def _kernel(back: Backward) -> list[int]:
    """Returns the spatial dimensions of the kernel."""
    kernel = list(back.attribute("kernel_shape", []))
    if kernel:
        return kernel
    sizes = [known_dimension(back.x(1), axis) for axis in range(2, back.rank(back.x(1)))]
    if not sizes or None in sizes:
        back.refuse("the size of its kernel is not known; expected numbers")
    return [size for size in sizes if size is not None]


def _sizes(back: Backward, kernel: Sequence[int]) -> _Sizes:
    x, w, count = back.x(0), back.x(1), int(np.prod(kernel))
    group, offset_group = back.int64([back.attribute("group", 1)]), back.int64([back.attribute("offset_group", 1)])
    images, elements = dimension_of(back, x, 0), back.int64([count])
    places = [dimension_of(back, back.x(2), 2 + axis) for axis in range(len(kernel))]
    return _Sizes(
        images=images,
        groups=back.op("Mul", images, offset_group),
        channels=back.op("Div", dimension_of(back, x, 1), offset_group),
        elements=elements,
        places=_product(back, places),
        group=group,
        outputs=back.op("Div", dimension_of(back, w, 0), group),
        inputs=back.op("Mul", dimension_of(back, w, 1), elements),
    )


def _samples(back: Backward, sizes: _Sizes, kernel: Sequence[int], dtype: ir.DataType) -> _Samples:
    x, rank = back.x(0), len(kernel)
    axes = [_axis(back, sizes, kernel, axis, dtype) for axis in range(rank)]
    shape = _concat(back, sizes.groups, back.int64([1]), sizes.elements, sizes.places, back.int64([2**rank]))
    weight = back.op("Reshape", _product(back, [axis.weight for axis in axes]), shape, allowzero=1)
    index = axes[0].element
    for axis, around in enumerate(axes[1:], 1):
        index = back.op("Add", back.op("Mul", index, dimension_of(back, x, 2 + axis)), around.element)
    index = back.op("Unsqueeze", back.op("Flatten", index, axis=1), back.int64([1]))
    picked = _concat(back, sizes.groups, sizes.channels, back.op("Shape", index, start=2))
    spatial = back.op("Slice", shape_of(back, x), back.int64([2]), back.int64([rank + 2]))
    flat = _concat(back, sizes.groups, sizes.channels, back.op("ReduceProd", spatial, keepdims=1))
    return _Samples(back, sizes, axes, weight, back.op("Expand", index, picked), flat, dtype)


def _axis(back: Backward, sizes: _Sizes, kernel: Sequence[int], axis: int, dtype: ir.DataType) -> _Axis:
    """Returns the elements around the places along a spatial axis."""
    rank = len(kernel)
    stride = (back.attribute("strides", []) or [1] * rank)[axis]
    dilation = (back.attribute("dilations", []) or [1] * rank)[axis]
    pad = (back.attribute("pads", []) or [0] * (2 * rank))[axis]

    def number(value: object) -> ir.Value:
        return back.constant(value, dtype)

    shape = _concat(back, sizes.groups, sizes.elements, back.int64([rank]), sizes.places)
    offset = back.op("Reshape", back.cast(back.x(2), dtype), shape, allowzero=1)
    offset = back.op("Gather", offset, back.int64(axis), axis=2)
    counts = [dimension_of(back, back.x(2), 2 + other) for other in range(rank)]
    count = back.op("Squeeze", counts[axis], back.int64([0]))
    begins = back.op("Mul", back.op("Range", back.int64(0), count, back.int64(1)), back.int64(stride))
    if later := list(range(1, rank - axis)):
        begins = back.op("Unsqueeze", begins, back.int64(later))
    begins = back.op("Reshape", back.op("Expand", begins, _concat(back, *counts)), sizes.places, allowzero=1)
    within_kernel = np.indices(kernel)[axis].reshape(-1, 1) * dilation - pad
    base = back.op("Add", back.op("Cast", begins, to=int(dtype)), number(within_kernel))
    place = back.op("Add", offset, base)

    begin = back.op("Floor", place)
    tap, behind = back.int64([-1]), number([-1, 1])
    fraction = back.op("Unsqueeze", back.op("Sub", place, begin), tap)
    element = back.op("Add", back.op("Unsqueeze", begin, tap), number([0, 1]))
    size = back.op("Cast", dimension_of(back, back.x(0), 2 + axis), to=int(dtype))
    positive = back.op("GreaterOrEqual", element, number(0))
    inside = back.op("Cast", back.op("And", positive, back.op("Less", element, size)), to=int(dtype))
    weight = back.op("Mul", back.op("Add", back.op("Mul", fraction, behind), number([1, 0])), inside)
    slope = back.op("Mul", inside, behind)
    # A place that is NaN reads the first element: ONNX Runtime fails at an index outside of X.
    element = back.op("Where", positive, back.op("Min", element, back.op("Sub", size, number(1))), number(0))
    element = back.op("Cast", element, to=int(ir.DataType.INT64))
    others = [3 + other for other in range(rank) if other != axis]
    values = (element, weight, slope)
    return _Axis(*(back.op("Unsqueeze", value, back.int64(others)) if others else value for value in values))


def _concat(back: Backward, *sizes: ir.Value) -> ir.Value:
    return back.op("Concat", *sizes, axis=0)


def _product(back: Backward, values: Sequence[ir.Value]) -> ir.Value:
    return reduce(lambda left, right: back.op("Mul", left, right), values)
