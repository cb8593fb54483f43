"""Attention in all its forms, and RotaryEmbedding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx

from gradient_fuzz.sketch import NotDrawableError

if TYPE_CHECKING:
    from gradient_fuzz.sketch import Sketch, Value


def attention(b: Sketch) -> list[Value]:
    if b.opset < 23:
        raise NotDrawableError("Attention")
    batch, length, new, size, value_size = (b.draw.randint(1, most) for most in (2, 3, 3, 3, 2))
    key_heads, past = b.draw.randint(1, 2), b.draw.choice([0, 0, 1, 2])
    heads, keys = key_heads * b.draw.choice([1, 1, 2]), past + new
    flat = b.draw.chance(0.4)
    dims = [(heads, length, size), (key_heads, new, size), (key_heads, new, value_size)]
    q, k, v = (b.of_shape((batch, n, h * d) if flat else (batch, h, n, d)) for h, n, d in dims)
    softcap = b.maybe(b.draw.choice([0.5, 2.0]), 0.3)
    before = [b.of_shape((batch, key_heads, past, d)) for d in (size, value_size)] if past else [None, None]
    lengths = None
    if b.opset >= 24 and not past and b.draw.chance(0.3):
        lengths = b.ints(*(b.draw.randint(1, keys) for _ in range(batch)))
    # onnx's reference caps products of mode 0.
    mode = b.draw.choice([1, 2, 3] if softcap else [0, 1, 2, 3])
    windows = ("left_window_size", "right_window_size") if b.opset >= 25 else ()
    return b.emit(
        "Attention",
        [q, k, v, _mask(b, (batch, heads, length, keys)), *before, lengths],
        [True, past > 0, past > 0, b.draw.chance(0.3)],
        is_causal=b.maybe(b.draw.choice([0, 1])),
        q_num_heads=heads if flat else None,
        kv_num_heads=key_heads if flat else None,
        scale=b.maybe(b.draw.choice([0.5, 1.5]), 0.3),
        softcap=softcap,
        qk_matmul_output_mode=mode,
        **{name: b.maybe(b.draw.choice([-1, 0, 1]), 0.5) for name in windows},
    )


def _mask(b: Sketch, shape: tuple[int, int, int, int]) -> Value | None:
    if b.draw.chance(0.4):
        return None
    batch, heads, *last = shape
    leading = [b.draw.choice([1, batch]), b.draw.choice([1, heads])][b.draw.randint(0, 2) :]
    if b.draw.chance(0.5):
        return b.of_shape((*leading, *last))
    return b.constant(b.rng.random((*leading, *last)) < 0.7, onnx.TensorProto.BOOL)


def rotary_embedding(b: Sketch) -> list[Value]:
    if b.opset < 23:
        raise NotDrawableError("RotaryEmbedding")
    batch, heads, length, half = (b.draw.randint(1, most) for most in (2, 2, 3, 2))
    rest, flat = b.draw.choice([0, 0, 2]), b.draw.chance(0.5)
    size = 2 * half + rest
    x = b.of_shape((batch, length, heads * size) if flat else (batch, heads, length, size))
    kept = b.draw.randint(1, 3) if b.draw.chance(0.5) else None
    caches = [b.of_shape((batch, length, half) if kept is None else (kept, half)) for _ in range(2)]
    positions = None if kept is None else b.constant(b.rng.integers(0, kept, (batch, length)))
    return b.emit(
        "RotaryEmbedding",
        [x, *caches, positions],
        interleaved=b.maybe(b.draw.choice([0, 1])),
        num_heads=heads if flat else None,
        rotary_embedding_dim=2 * half if rest else b.maybe(2 * half) if flat else None,
    )


ENTRIES = {("", "Attention"): attention, ("", "RotaryEmbedding"): rotary_embedding}
