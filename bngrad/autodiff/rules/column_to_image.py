"""Col2Im, which adds up blocks of an image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.autodiff.rule import gradient
from bngrad.graph.shapes import shape_of
from bngrad.opset.op_attributes import ANY

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients


@gradient("Col2Im", versions=(18,), attributes=dict.fromkeys(("dilations", "pads", "strides"), ANY))
def col2im(back: Backward) -> Gradients:
    """dX = the elements of each block of dY: element k of block o is at o stride + k dilation - pad."""
    rank = back.rank(back.y()) - 2
    strides = back.attribute("strides", []) or [1] * rank
    dilations = back.attribute("dilations", []) or [1] * rank
    pads = list(back.attribute("pads", [])) or [0] * (2 * rank)
    if rank != 2 and max(dilations) > 1:
        # There ONNX Runtime adds up other elements than ONNX.
        back.refuse(f"it has dilations {list(dilations)}; expected two spatial dimensions, or no dilation")
    values = back.dY
    if any(pads):
        values = back.op("Pad", values, back.int64([0, 0, *pads[:rank], 0, 0, *pads[rank:]]))
    sizes = back.op("Shape", values)
    # [N, C, elements, blocks, elements, blocks, ...]: each axis becomes one of elements and one of blocks.
    for axis, (stride, dilation) in enumerate(zip(strides, dilations, strict=True)):
        places = _places(back, axis, sizes, stride, dilation)
        values = back.op("Gather", values, places, axis=2 + 2 * axis)
    if rank > 1:
        values = back.op("Transpose", values, perm=[0, 1, *range(2, 2 + 2 * rank, 2), *range(3, 3 + 2 * rank, 2)])
    return [back.op("Reshape", values, shape_of(back, back.x(0)), allowzero=1)]


def _places(back: Backward, axis: int, sizes: ir.Value, stride: int, dilation: int) -> ir.Value:
    """Returns the places along a spatial axis, of each element of each block."""
    zero, unit = back.int64(0), back.int64(1)
    step = back.int64(dilation)
    count = back.op("Gather", back.x(2), back.int64(axis))
    elements = back.op("Mul", back.op("Range", zero, count, unit), step)
    length = back.op("Mul", back.op("Sub", count, unit), step)
    size = back.op("Gather", sizes, back.int64(2 + axis))
    blocks = back.op("Range", zero, back.op("Sub", size, length), back.int64(stride))
    return back.op("Add", back.op("Unsqueeze", elements, back.int64([1])), blocks)
