"""Ops with quantized operands; onnx has DequantizeLinear only from opset 19 on, and computes in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bngrad.validation.training_ops._types import Array

    Bytes = NDArray[np.uint8]


def matmul_nbits(
    A: Array,
    B: Bytes,
    scales: Array,
    zero_points: NDArray[Any] | None = None,
    g_idx: None = None,  # noqa: ARG001
    bias: Array | None = None,
    *,
    K: int,
    N: int,
    bits: int = 4,
    block_size: int,
    accuracy_level: int = 0,  # noqa: ARG001 - the exact product is within any level
    weight_prepacked: int = 0,  # noqa: ARG001
) -> Array:
    """Returns Y = A W^T + bias, with W = (q - zero_points) scales for each block of a row."""
    blocks = -(-K // block_size)
    zero: NDArray[Any] = np.asarray(2.0 ** (bits - 1))
    if zero_points is not None and zero_points.dtype == np.uint8:
        zero = _unpacked(zero_points.reshape(N, -1), bits)[:, :blocks, None]
    elif zero_points is not None:
        zero = zero_points.reshape(N, blocks, 1)
    q = _unpacked(B.reshape(N, blocks, -1), bits)
    W = ((q - zero) * scales.reshape(N, blocks, 1)).reshape(N, -1)[:, :K]
    Y: Array = A @ W.T.astype(A.dtype)
    return Y if bias is None else Y + bias


def _unpacked(packed: Bytes, bits: int) -> Array:
    """Returns the numbers that bytes consist of, from the lowest bits on, along the last axis."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = packed[..., None] >> shifts & np.uint8((1 << bits) - 1)
    result: Array = numbers.reshape(*packed.shape[:-1], -1).astype(np.float64)
    return result


def dequantize_linear(
    X: NDArray[Any],
    scale: Array,
    zero_point: NDArray[Any] | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,  # noqa: ARG001 - every float is a float64
) -> Array:
    """Returns Y = (X - zero_point) scale, with a scale for each index of the axis, or for each block of it."""
    numbers = X.astype(scale.dtype)
    if zero_point is not None:
        numbers = numbers - _spread(zero_point.astype(scale.dtype), X.shape, axis, block_size)
    Y: Array = numbers * _spread(scale, X.shape, axis, block_size)
    return Y


def _spread(parameter: NDArray[Any], shape: tuple[int, ...], axis: int, block_size: int) -> NDArray[Any]:
    """Returns a scale or zero point in a shape that broadcasts to that of the data."""
    if block_size:
        return np.take(np.repeat(parameter, block_size, axis=axis), range(shape[axis]), axis=axis)
    if parameter.size == 1:
        return parameter.reshape(())
    dimensions = [1] * len(shape)
    dimensions[axis if parameter.ndim and len(shape) > 1 else 0] = parameter.size
    return parameter.reshape(dimensions)
