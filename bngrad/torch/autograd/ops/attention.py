"""Attention and rotary embeddings."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bngrad.torch.autograd.table import op


@op("Attention", since=23)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    past_k: Tensor | None = None,
    past_v: Tensor | None = None,
    lengths: Tensor | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int = 1,
    left_window_size: int = -1,
    q_num_heads: int = 1,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int = 1,  # noqa: ARG001 - all is double
) -> tuple[Tensor, ...]:
    """Y, the keys and values with those before them, and the products, capped, masked or as probabilities."""
    flat = q.ndim == 3
    if flat:
        q, k, v = (_heads(x, heads) for x, heads in ((q, q_num_heads), (k, kv_num_heads), (v, kv_num_heads)))
    if past_k is not None and past_v is not None:
        k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
    keys, values = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    products = q @ keys.mT * (1 / math.sqrt(q.shape[3]) if scale is None else scale)
    capped = torch.tanh(products / softcap) * softcap if softcap else products
    first = torch.tensor(0 if past_k is None else past_k.shape[2])
    column = torch.arange(k.shape[2])
    hidden = torch.zeros(products.shape[2:], dtype=torch.bool)
    if lengths is not None:
        lengths = lengths.reshape(-1, 1, 1, 1)
        hidden, first = hidden | (column >= lengths), lengths - q.shape[2]
    row = torch.arange(q.shape[2]).unsqueeze(1) + first
    if is_causal:
        hidden = hidden | (column > row)
    if left_window_size >= 0:
        hidden = hidden | (column < row - left_window_size)
    if right_window_size >= 0:
        hidden = hidden | (column > row + right_window_size)
    masked = capped
    if mask is not None:
        missing = [0, k.shape[2] - mask.shape[-1]]
        if mask.dtype == torch.bool:
            hidden = hidden | ~torch.nn.functional.pad(mask, missing)
        else:
            masked = masked + torch.nn.functional.pad(mask, missing, value=-math.inf)
    masked = masked.masked_fill(hidden, -math.inf)
    without = (masked == -math.inf).all(-1, keepdim=True)
    p = torch.softmax(masked.masked_fill(without, 0.0), -1).masked_fill(without, 0.0)
    y = p @ values
    y = y.transpose(1, 2).flatten(2) if flat else y
    return y, k, v, (products, capped, masked, p)[qk_matmul_output_mode]


@op("RotaryEmbedding", since=23)
def rotary_embedding(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    *,
    interleaved: int = 0,
    num_heads: int = 1,
    rotary_embedding_dim: int = 0,
) -> Tensor:
    """The pairs of elements of each head turned by an angle: neighbours, or an element of each half."""
    heads = _heads(x, num_heads) if x.ndim == 3 else x
    size = rotary_embedding_dim or heads.shape[3]
    turned, rest = heads[..., :size], heads[..., size:]
    cos, sin = ((cache if positions is None else cache[positions]).unsqueeze(1) for cache in (cos, sin))
    first, second = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    parts = [cos * first - sin * second, sin * first + cos * second]
    both = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
    y = torch.cat([both, rest], -1)
    return y.transpose(1, 2).flatten(2) if x.ndim == 3 else y


def _heads(x: Tensor, heads: int) -> Tensor:
    """Returns [batch, heads, length, size] of [batch, length, heads * size]."""
    return x.unflatten(2, (heads, x.shape[2] // heads)).transpose(1, 2)
