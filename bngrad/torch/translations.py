"""Ops that PyTorch's exporter writes without their gradient: what it is given instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from onnxscript import opset18
from onnxscript.values import Opset

from bngrad.autodiff import stop_gradient
from bngrad.errors import UnsupportedNodeError
from bngrad.torch.batch_norm import batch_norm

if TYPE_CHECKING:
    from collections.abc import Callable


op: Any = opset18  # its functions are typed for tensors of one type


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """What `torch.onnx.export` takes as its custom translation table."""
    stop_gradient.register_schema()
    return {
        torch.ops.aten._native_batch_norm_legit_functional.default: batch_norm,
        torch.ops.aten.detach.default: _stop_gradient,
        torch.ops.aten.embedding.default: _embedding,
    }


def _stop_gradient(self: Any) -> Any:  # noqa: ANN401 - of onnxscript's
    """aten.detach -> StopGradient."""
    return Opset(stop_gradient.DOMAIN, 1).StopGradient(self)


def _embedding(
    weight: Any,  # noqa: ANN401
    indices: Any,  # noqa: ANN401
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,  # noqa: ARG001 - how PyTorch stores the gradient
) -> Any:  # noqa: ANN401
    """aten.embedding -> Gather, where the row of the padding has no gradient."""
    if scale_grad_by_freq:
        raise UnsupportedNodeError(
            "aten.embedding has scale_grad_by_freq=True, which divides its gradient by counts; expected False"
        )
    rows = op.Gather(weight, indices)
    if padding_idx < 0:
        return rows
    padding = op.CastLike(op.Constant(value_int=padding_idx), indices)
    is_padding = op.Unsqueeze(op.Equal(indices, padding), op.Constant(value_ints=[-1]))
    return op.Where(is_padding, _stop_gradient(rows), rows)
