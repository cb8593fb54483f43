"""The gradient of MatMulNBits, a product with a quantized weight of N rows, K columns and a scale for each block.

ONNX Runtime folds no DequantizeLinear of constants: between steps, the weight takes 8 bits an element, and not 32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.autodiff.rule import gradient
from bngrad.graph.broadcasting import sum_to
from bngrad.graph.node_reader import dtype_of
from bngrad.opset.op_attributes import ANY
from bngrad.opset.ort_dialect import MICROSOFT

if TYPE_CHECKING:
    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients

_BYTE = 8
_WITHOUT_KERNEL = 28
"""The opset whose DequantizeLinear ONNX Runtime 1.32 lacks."""


@gradient(
    "MatMulNBits",
    domain=MICROSOFT,
    inputs=(0, 5),
    attributes={
        "bits": (2, 4, 8),
        **dict.fromkeys(("K", "N", "accuracy_level", "block_size"), ANY),
        "weight_prepacked": (0,),
    },
)
def matmul_nbits(back: Backward) -> Gradients:
    """For Y = A W^T + bias, dA = dY W, with W = (q - zero) scale of each block, and dbias = the sum of dY.

    The rounding of A that ``accuracy_level`` allows counts as the identity.
    """
    if back.has(4):
        back.refuse("it has g_idx, an order of the columns; expected none")
    b = back.x(1)
    if b.shape is None or len(b.shape) != 3 or 0 in b.shape:
        back.refuse(f"its weight has the shape {b.shape}; expected [N, blocks, bytes of a block]")
    dA = back.op("MatMul", back.dY, _weight(back)) if back.needs(0) else None
    dbias = sum_to(back, back.dY, back.x(5), back.y()) if back.needs(5) else None
    return [dA, *[None] * 4, dbias]


def _weight(back: Backward) -> ir.Value:
    """Dequantizes the weight to [N, K], in the type of A."""
    bits, block = back.attribute("bits", 4), back.attribute("block_size", 0)
    rows, columns = back.attribute("N", 0), back.attribute("K", 0)
    blocks = -(-columns // block)
    q = back.op("Reshape", _unpacked(back, back.x(1), bits), back.int64([rows * blocks, block]))
    scale = back.op("Reshape", back.cast(back.x(2), ir.DataType.FLOAT), back.int64([rows * blocks]))
    zero = back.optional(3)
    if zero is None or zero.dtype == ir.DataType.UINT8:
        zero = _zero_points(back, zero, bits, rows, blocks)
    if zero.dtype == ir.DataType.UINT8 and back.opset < _WITHOUT_KERNEL:
        dequantized = back.op("DequantizeLinear", q, scale, zero, axis=0)
    else:
        q, zero = (back.op("Cast", value, to=int(ir.DataType.FLOAT)) for value in (q, zero))
        zero, scale = (back.op("Reshape", value, back.int64([rows * blocks, 1])) for value in (zero, scale))
        dequantized = back.op("Mul", back.op("Sub", q, zero), scale)
    weight = back.op("Reshape", dequantized, back.int64([rows, blocks * block]))
    if blocks * block != columns:
        weight = back.op("Slice", weight, *(back.int64([number]) for number in (0, columns, 1)))
    weight.dtype = ir.DataType.FLOAT
    return back.cast(weight, dtype_of(back.x(0)))


def _zero_points(back: Backward, packed: ir.Value | None, bits: int, rows: int, blocks: int) -> ir.Value:
    """Returns the zero point of each block as a byte."""
    if packed is None:
        return back.constant([1 << (bits - 1)] * (rows * blocks), ir.DataType.UINT8)
    whole = -(-blocks * bits // _BYTE) * _BYTE // bits
    zero = back.op("Reshape", _unpacked(back, packed, bits), back.int64([rows, whole]))
    if whole != blocks:
        zero = back.op("Slice", zero, *(back.int64([number]) for number in (0, blocks, 1)))
    result = back.op("Reshape", zero, back.int64([rows * blocks]))
    result.dtype = ir.DataType.UINT8
    return result


def _unpacked(back: Backward, packed: ir.Value, bits: int) -> ir.Value:
    """Returns the numbers of some bits that bytes consist of, from the lowest bits on, in a further dimension."""
    if bits == _BYTE:
        return packed
    mask, last = back.constant((1 << bits) - 1, ir.DataType.UINT8), back.int64([-1])
    parts = []
    for shift in range(0, _BYTE, bits):
        part = packed
        if shift:
            part = back.op("BitShift", part, back.constant(shift, ir.DataType.UINT8), direction="RIGHT")
        parts.append(back.op("Unsqueeze", back.op("BitwiseAnd", part, mask), last))
    return back.op("Concat", *parts, axis=-1)
