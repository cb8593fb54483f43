"""Heads of attention, which ops take side by side in the last dimension."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

if TYPE_CHECKING:
    from bngrad.autodiff.backward import Backward


def split_heads(back: Backward, x: ir.Value, heads: int) -> ir.Value:
    """Reshapes [batch, length, heads * size] to [batch, length, heads, size]."""
    batch, length, width = x.shape if x.shape is not None else (None, None, None)
    if isinstance(width, int):
        size = width // heads
        shape = back.int64([0, 0, heads, size])
    else:
        size = None
        computed = back.op("Div", back.op("Shape", x, start=2, end=3), back.int64([heads]))
        shape = back.op("Concat", back.int64([0, 0, heads]), computed, axis=0)
    result = back.op("Reshape", x, shape)
    result.type, result.shape = x.type, ir.Shape([batch, length, heads, size])
    return result
