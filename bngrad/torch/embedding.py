"""PyTorch's embedding, as ONNX, and EmbeddingBag in smaller ops.

`torch.onnx.export` ignores the options of an embedding that affect the gradient, and writes an EmbeddingBag as a
Loop.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from bngrad.errors import UnsupportedNodeError
from bngrad.torch.onnx_ops import detach, op


def embedding(
    weight: Any,  # noqa: ANN401 - of onnxscript's
    indices: Any,  # noqa: ANN401
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,  # noqa: ARG001 - the gradient is dense, with the same values
) -> Any:  # noqa: ANN401
    """aten.embedding: the row ``padding_idx`` gets no gradient.

    Raises:
        UnsupportedNodeError: The gradient is scaled by the frequency of the indices.
    """
    if scale_grad_by_freq:
        raise UnsupportedNodeError(
            "the module has an embedding with scale_grad_by_freq=True, which is unsupported; expected False"
        )
    rows = op.Gather(weight, indices)
    if padding_idx < 0:
        return rows
    padding = op.Equal(indices, op.CastLike(op.Constant(value_int=padding_idx), indices))
    return op.Where(op.Unsqueeze(padding, op.Constant(value_ints=[-1])), detach(rows), rows)


def embedding_bag(
    input: torch.Tensor,  # noqa: A002 - PyTorch's name
    weight: torch.Tensor,
    offsets: torch.Tensor | None,
    max_norm: float | None,
    norm_type: float,  # noqa: ARG001 - of max_norm
    scale_grad_by_freq: bool,
    mode: str,
    sparse: bool,  # noqa: ARG001 - the gradient is dense, with the same values
    per_sample_weights: torch.Tensor | None,
    include_last_offset: bool,
    padding_idx: int | None,
) -> torch.Tensor:
    """Computes `torch.nn.functional.embedding_bag`.

    Raises:
        UnsupportedNodeError: The gradient is scaled by the frequency of the indices, the weight is changed, or
            bags of different sizes have a maximum.
    """
    refused = {"scale_grad_by_freq": scale_grad_by_freq, "max_norm": max_norm}
    for option, value in refused.items():
        if value:
            raise UnsupportedNodeError(
                f"the module has an EmbeddingBag with {option}={value}, which is unsupported; leave it out"
            )
    if padding_idx is not None and padding_idx < 0:
        padding_idx += weight.shape[0]
    rows = functional.embedding(input, weight)
    kept = torch.ones_like(input, dtype=torch.bool) if padding_idx is None else input != padding_idx
    if mode == "max":
        if input.ndim < 2:
            raise UnsupportedNodeError(
                "the module has an EmbeddingBag with mode='max' and offsets, which is unsupported; expected bags "
                "of one size: pass the indices as a matrix with a row for each bag, without offsets"
            )
        largest = rows.masked_fill(~kept.unsqueeze(-1), -torch.inf).amax(1)
        return torch.where(kept.any(1, keepdim=True), largest, torch.zeros_like(largest))
    shares = kept.to(weight.dtype)
    if per_sample_weights is not None:
        shares = shares * per_sample_weights
    if input.ndim < 2:
        members = _members(input, offsets, include_last_offset=include_last_offset)
        sums, counts = (members.to(weight.dtype) * shares) @ rows, (members & kept).sum(1)
    else:
        sums, counts = (rows * shares.unsqueeze(-1)).sum(1), kept.sum(1)
    return sums if mode == "sum" else sums / counts.clamp(min=1).unsqueeze(-1).to(weight.dtype)


def _members(indices: torch.Tensor, offsets: torch.Tensor | None, *, include_last_offset: bool) -> torch.Tensor:
    """[bags, indices]: which index belongs to which bag."""
    if offsets is None:
        raise UnsupportedNodeError(
            "the module has an EmbeddingBag of a vector without offsets; expected offsets, or a matrix of indices"
        )
    place = torch.arange(indices.shape[0], device=indices.device)
    begin = place.unsqueeze(0) >= offsets.unsqueeze(1)
    if include_last_offset:
        return begin[:-1] & ~begin[1:]
    last = torch.zeros_like(begin[:1])
    return begin & ~torch.cat([begin[1:], last])
