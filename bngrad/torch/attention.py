"""Attention with fully masked rows: zeros in PyTorch, and a mean or NaN by its exporter."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript.function_libs.torch_lib.ops import nn

from bngrad.torch.onnx_ops import op


def scaled_dot_product_attention(
    query: Any,  # noqa: ANN401 - of onnxscript's
    key: Any,  # noqa: ANN401
    value: Any,  # noqa: ANN401
    attn_mask: Any = None,  # noqa: ANN401
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:  # noqa: ANN401
    """aten.scaled_dot_product_attention -> the exporter's, with an open mask and zeros where a row is masked."""
    if attn_mask is None:
        return nn.aten_scaled_dot_product_attention(
            query, key, value, None, dropout_p, is_causal, scale, enable_gqa
        )
    last = op.Constant(value_ints=[-1])
    if attn_mask.dtype == ir.DataType.BOOL:
        masked = op.Not(op.Cast(op.ReduceMax(op.Cast(attn_mask, to=ir.DataType.INT32), last), to=ir.DataType.BOOL))
        opened = op.Or(attn_mask, masked)
        opened.dtype = attn_mask.dtype
    else:
        lowest = op.CastLike(op.Constant(value_float=float("-inf")), attn_mask)
        masked = op.Equal(op.ReduceMax(attn_mask, last), lowest)
        opened = op.Where(masked, op.CastLike(op.Constant(value_float=0.0), attn_mask), attn_mask)
        opened.dtype = attn_mask.dtype
    result = nn.aten_scaled_dot_product_attention(
        query, key, value, opened, dropout_p, is_causal, scale, enable_gqa
    )
    return op.Where(masked, op.CastLike(op.Constant(value_float=0.0), query), result)
