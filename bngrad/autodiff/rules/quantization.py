"""Gradients of quantization, computed in float: of scales, and of what a rounding reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.autodiff.rule import gradient
from bngrad.autodiff.straight_through import rounding_of
from bngrad.graph.broadcasting import sum_to
from bngrad.graph.node_reader import dtype_of, read_attribute
from bngrad.graph.shapes import dimension_of, shape_of
from bngrad.opset.op_attributes import ANY

if TYPE_CHECKING:
    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients
    from bngrad.autodiff.straight_through import Rounding


@gradient("DynamicQuantizeLinear", inputs=(), zero=(0,), versions=(11,))
def dynamic_quantize_linear(back: Backward) -> Gradients:
    """The scale counts as a constant, as that of an observer in PyTorch; q has the rule of a rounding."""
    return [None for _ in back.node.inputs]


@gradient(
    "DequantizeLinear",
    inputs=None,
    versions=(13, 19, 21, 23, 24, 25, 28),
    attributes={"axis": ANY, "block_size": ANY, "output_dtype": ANY},
)
def dequantize_linear(back: Backward) -> Gradients:
    """For Y = (q - zero) scale, dscale = dY (q - zero), summed over the elements that share a scale.

    If q is a rounding of x, q = saturate(round(x / scale_x) + zero_x), and round(x / scale_x) + zero_x is within
    its range, dx = dY scale / scale_x and dscale_x = -dx x / scale_x; beyond the range both are 0. For one scale,
    dscale is that of learned step sizes: dY (round(x / scale) - x / scale) within the range. Floats of fewer bits
    have no round() there: x / scale_x + zero_x counts.
    """
    q, scale, data = back.x(0), back.x(1), back.y()
    of_scale = of_x = of_scale_x = None
    dY = back.cast(back.dY, ir.DataType.FLOAT)
    if back.needs(1):
        ones = back.op("Expand", back.constant(1, ir.DataType.FLOAT), back.op("Shape", scale))
        attributes = {name: value for name, value in back.attributes().items() if name != "output_dtype"}
        integers = back.op("DequantizeLinear", q, ones, back.optional(2), **attributes)
        of_scale = _Parameter(back, back.node, scale, data).gradient(back.op("Mul", dY, integers))
    rounding, count = rounding_of(back.node), len(back.node.inputs)
    if rounding is not None and (back.needs(count) or back.needs(count + 1)):
        of_x, of_scale_x = _through(back, rounding, dY)
    return [None, of_scale, *[None] * (count - 2), of_x, of_scale_x]


def _through(back: Backward, rounding: Rounding, dY: ir.Value) -> tuple[ir.Value, ir.Value | None]:
    """Returns the gradients of what a rounding reads."""
    quantizer, x = rounding.quantizer, rounding.x
    scale = _Parameter(back, quantizer, rounding.scale, x)
    ratio = back.op("Div", back.cast(x, ir.DataType.FLOAT), scale.spread())
    integers = back.op("Round", ratio) if dtype_of(back.x(0)).is_integer() else ratio
    if rounding.zero_point is not None:
        # Every quantized type has this op, but not all have a Cast.
        zero = back.op("DequantizeLinear", rounding.zero_point, back.constant(1, ir.DataType.FLOAT))
        zero.type, zero.shape = ir.TensorType(ir.DataType.FLOAT), rounding.zero_point.shape
        integers = back.op("Add", integers, _Parameter(back, quantizer, zero, x).spread())
    limits = (back.constant(limit, ir.DataType.FLOAT) for limit in rounding.limits)
    within = back.op("Equal", integers, back.op("Clip", integers, *limits))
    of_ratio = back.kept(within, dY)
    if not (back.x(1) is rounding.scale and _layout(back.node) == _layout(quantizer)):
        of_ratio = back.op("Mul", of_ratio, _Parameter(back, back.node, back.x(1), back.y()).spread())
        of_x = back.op("Div", of_ratio, scale.spread())
    else:
        of_x = of_ratio
    of_scale = None
    if back.needs(len(back.node.inputs) + 1):
        of_scale = scale.gradient(back.op("Neg", back.op("Mul", of_x, ratio)))
    return back.cast(_typed(of_x, x), dtype_of(x)), of_scale


def _typed(value: ir.Value, like: ir.Value) -> ir.Value:
    value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), like.shape
    return value


def _layout(node: ir.Node) -> tuple[int, int]:
    """Returns the axis and the block size of a node that quantizes or dequantizes."""
    return read_attribute(node, "axis", 1), read_attribute(node, "block_size", 0)


class _Parameter:
    """A scale or zero point of some data: one for all, for each index of an axis, or for each block along it.

    Args:
        back: The node that it is for.
        node: The node that reads it: its attributes decide.
        value: The scale, or a zero point as floats.
        data: The data, quantized or not.
    """

    def __init__(self, back: Backward, node: ir.Node, value: ir.Value, data: ir.Value) -> None:
        self._back, self._value, self._data = back, value, data
        self._axis, self._block = _layout(node)
        self._rank = back.rank(value)

    def spread(self) -> ir.Value:
        """Returns it in float, in a shape that broadcasts to the data."""
        back = self._back
        value = back.cast(self._value, ir.DataType.FLOAT)
        if self._block:
            return back.op("Gather", value, self._blocks(), axis=self._axis)
        return self._in_rank(value)

    def gradient(self, of_data: ir.Value) -> ir.Value:
        """Sums a float gradient in the shape of the data to that of the parameter, in its type."""
        back, value = self._back, self._value
        if self._block:
            result = back.microsoft("GatherGrad", shape_of(back, value), self._blocks(), of_data, axis=self._axis)
        else:
            of_data.type, of_data.shape = ir.TensorType(ir.DataType.FLOAT), self._data.shape
            result = sum_to(back, of_data, self._in_rank(value), self._data)
            if axes := self._other_axes():
                result = back.op("Squeeze", result, back.int64(axes))
        return back.cast(_typed(result, value), dtype_of(value))

    def _other_axes(self) -> list[int]:
        """Returns the axes of the data that a vector lacks."""
        rank = self._back.rank(self._data) if self._rank else 0
        return [axis for axis in range(rank) if axis != self._axis % rank]

    def _in_rank(self, value: ir.Value) -> ir.Value:
        """Inserts the dimensions around the axis."""
        axes = self._other_axes()
        if not axes:
            return value
        result = self._back.op("Unsqueeze", value, self._back.int64(axes))
        size = value.shape[0] if value.shape is not None else None
        dimensions = [1 if axis in axes else size for axis in range(len(axes) + 1)]
        result.type, result.shape = value.type, ir.Shape(dimensions)
        return result

    def _blocks(self) -> ir.Value:
        """Returns the block of each index of the axis."""
        back = self._back
        size = back.op("Squeeze", dimension_of(back, self._data, self._axis), back.int64([0]))
        indices = back.op("Range", back.int64(0), size, back.int64(1))
        result = back.op("Div", indices, back.int64(self._block))
        result.dtype, result.shape = ir.DataType.INT64, ir.Shape([None])
        return result
