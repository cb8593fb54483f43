"""The gradient of RotaryEmbedding: a rotation by the opposite angle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.autodiff.heads import split_heads
from bngrad.autodiff.rule import gradient
from bngrad.graph.broadcasting import sum_to
from bngrad.opset.op_attributes import ANY, FLAG

if TYPE_CHECKING:
    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients


@gradient(
    "RotaryEmbedding",
    inputs=(0, 1, 2),
    versions=(23,),
    attributes={"interleaved": FLAG, "num_heads": ANY, "rotary_embedding_dim": ANY},
)
def rotary_embedding(back: Backward) -> Gradients:
    """For Y1 = cos X1 - sin X2 and Y2 = sin X1 + cos X2, dX is the rotation of dY with -sin.

    dcos is the sum of dY1 X1 + dY2 X2 over the heads, and dsin that of dY2 X1 - dY1 X2; both are added up over
    equal positions.
    """
    dX = d_cos = d_sin = None
    if back.needs(0):
        inputs = [back.dY, back.x(1), back.op("Neg", back.x(2)), *back.node.inputs[3:]]
        dX = back.op("RotaryEmbedding", *inputs, **back.attributes())
    if back.needs(1) or back.needs(2):
        x1, x2 = _halves(back, back.x(0))
        dY1, dY2 = _halves(back, back.dY)
    if back.needs(1):
        d_cos = _of_cache(back, 1, back.op("Add", back.op("Mul", dY1, x1), back.op("Mul", dY2, x2)))
    if back.needs(2):
        d_sin = _of_cache(back, 2, back.op("Sub", back.op("Mul", dY2, x1), back.op("Mul", dY1, x2)))
    return [dX, d_cos, d_sin, None]


def _halves(back: Backward, value: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Returns the parts of X or dY that are rotated together, [batch, length, heads, half of the rotated size]."""
    if back.rank(back.x(0)) == 3:
        value = split_heads(back, value, back.attribute("num_heads", 1))
    else:
        value = back.op("Transpose", value, perm=[0, 2, 1, 3])
    if size := back.attribute("rotary_embedding_dim", 0):
        value = back.op("Slice", value, *(back.int64([number]) for number in (0, size, 3)))
    if not back.attribute("interleaved", 0):
        first, second = back.outputs_of("Split", value, outputs=["first", "second"], axis=3, num_outputs=2)
        return first, second
    ends, axes, steps = back.int64([2**31 - 1]), back.int64([3]), back.int64([2])
    first, second = (back.op("Slice", value, back.int64([start]), ends, axes, steps) for start in (0, 1))
    return first, second


def _of_cache(back: Backward, index: int, by_head: ir.Value) -> ir.Value:
    """Sums over the heads, and over the places that read an element of the cosines or sines."""
    cache = back.x(index)
    summed = back.op("ReduceSum", by_head, back.int64([2]), keepdims=0)
    if back.has(3):
        return back.microsoft("GatherGrad", back.op("Shape", cache), back.x(3), summed, axis=0)
    shape, x_shape = cache.shape, back.x(0).shape
    if shape is None or x_shape is None or len(shape) != 3:
        back.refuse(f"its input {index} has the shape {shape}, without positions; expected 3 dimensions")
    summed.type = cache.type
    summed.shape = ir.Shape([x_shape[0], x_shape[1 if len(x_shape) == 3 else 2], shape[2]])
    return sum_to(back, summed, cache, summed)
