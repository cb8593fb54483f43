"""Ops with integers that stand for floats."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx

from gradient_fuzz.sketch import NotDrawableError

if TYPE_CHECKING:
    from gradient_fuzz.sketch import Sketch, Value

_LIMITS = {onnx.TensorProto.INT8: (-128, 127), onnx.TensorProto.UINT8: (0, 255)}


def dequantize_linear(b: Sketch) -> list[Value]:
    shape, element = b.dims(b.draw.randint(1, 3)), b.draw.choice(sorted(_LIMITS))
    axis, block, of_scale = b.axis(len(shape)), None, ()
    if b.opset >= 21 and b.draw.chance(0.3):
        block = b.draw.randint(1, 3)
        of_scale = tuple(
            -(-size // block) if index == axis % len(shape) else size for index, size in enumerate(shape)
        )
    elif b.opset >= 13 and b.draw.chance(0.5):
        of_scale = (shape[axis],)
    q, zero = (b.constant(b.rng.integers(*_LIMITS[element], size), element) for size in (shape, of_scale))
    return b.emit(
        "DequantizeLinear",
        [q, b.of_shape(of_scale), b.maybe(zero)],
        axis=axis if block or of_scale else None,
        block_size=block,
    )


def matmul_nbits(b: Sketch) -> list[Value]:
    if b.element != onnx.TensorProto.FLOAT:
        raise NotDrawableError("MatMulNBits")
    bits, rows, columns = b.draw.choice([2, 4, 8]), b.draw.randint(1, 3), b.draw.randint(1, 40)
    blocks = -(-columns // 16)
    packed = [b.rng.integers(0, 256, (rows, size)) for size in (blocks * 2 * bits, -(-blocks * bits // 8))]
    weight = b.constant(packed[0].reshape(rows, blocks, -1), onnx.TensorProto.UINT8)
    scales = b.constant(b.rng.uniform(0.01, 0.1, (rows, blocks)), onnx.TensorProto.FLOAT)
    zero = b.draw.choice([None, b.constant(packed[1], onnx.TensorProto.UINT8)])
    bias = b.draw.choice([None, b.of_shape((rows,))])
    a = b.of_shape((*b.dims(b.draw.randint(1, 2)), columns))
    return b.emit(
        "MatMulNBits",
        [a, weight, scales, zero, None, bias],
        domain="com.microsoft",
        K=columns,
        N=rows,
        bits=bits,
        block_size=16,
    )


ENTRIES = {
    ("", "DequantizeLinear"): dequantize_linear,
    ("com.microsoft", "MatMulNBits"): matmul_nbits,
}
