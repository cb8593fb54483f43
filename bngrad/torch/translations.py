"""Translations of ops of PyTorch that its exporter writes wrongly, or without the stop of a gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from bngrad.autodiff import stop_gradient
from bngrad.torch.attention import scaled_dot_product_attention
from bngrad.torch.batch_norm import batch_norm
from bngrad.torch.draws import draws
from bngrad.torch.embedding import embedding
from bngrad.torch.onnx_ops import detach, item

if TYPE_CHECKING:
    from collections.abc import Callable


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """The custom translation table for `torch.onnx.export`."""
    stop_gradient.register_schema()
    return {
        torch.ops.aten._native_batch_norm_legit_functional.default: batch_norm,
        torch.ops.aten.detach.default: detach,
        torch.ops.aten._local_scalar_dense.default: item,
        torch.ops.aten.embedding.default: embedding,
        torch.ops.aten.scaled_dot_product_attention.default: scaled_dot_product_attention,
        **draws(),
    }
