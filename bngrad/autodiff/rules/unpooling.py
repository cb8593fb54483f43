"""MaxUnpool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.autodiff.rule import gradient
from bngrad.graph.node_reader import dtype_of
from bngrad.graph.shapes import shape_of, zeros
from bngrad.opset.op_attributes import ANY

if TYPE_CHECKING:
    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients

_DIGIT = 2**12
"""The base of the numbers of elements, whose parts a float has exactly."""


@gradient("MaxUnpool", versions=(11, 22), attributes=dict.fromkeys(("kernel_shape", "pads", "strides"), ANY))
def max_unpool(back: Backward) -> Gradients:
    """dX = dY at the place of the element in Y; 0 where another element has the same index and replaced it.

    The op itself tells the places, from the numbers of the elements: with an output_shape other than the natural
    one, ONNX and ONNX Runtime put elements at different places.
    """
    x, base = back.x(0), back.int64(_DIGIT)
    count = back.op("Size", x)
    beyond = back.op("Add", count, back.int64(1))
    numbers = back.op("Range", back.int64(1), beyond, back.int64(1))
    numbers = back.op("Reshape", numbers, shape_of(back, x), allowzero=1)

    def placed(part: ir.Value) -> ir.Value:
        unpooled = back.op(
            "MaxUnpool", back.cast(part, ir.DataType.FLOAT), *back.node.inputs[1:], **back.attributes()
        )
        return back.cast(unpooled, ir.DataType.INT64)

    high, low = (placed(back.op(op_type, numbers, base)) for op_type in ("Div", "Mod"))
    places = back.op("Reshape", back.op("Add", back.op("Mul", high, base), low), back.int64([-1]))
    # Places without an element have the number 0.
    whole = zeros(back, back.op("Unsqueeze", beyond, back.int64([0])), dtype_of(x))
    flat = back.op("Reshape", back.dY, back.int64([-1]))
    result = back.op("ScatterElements", whole, places, flat, axis=0)
    result = back.op("Slice", result, back.int64([1]), back.op("Unsqueeze", beyond, back.int64([0])))
    return [back.op("Reshape", result, shape_of(back, x), allowzero=1)]
