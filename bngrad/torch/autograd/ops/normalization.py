"""Batch norms and the other normalizations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from bngrad.torch.autograd.table import float32, op

if TYPE_CHECKING:
    from collections.abc import Sequence

_EPSILON = float32(1e-5)


@op("BatchNormalization", since=14)
def batch_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    epsilon: float = _EPSILON,
    momentum: float = float32(0.9),
    training_mode: int = 0,
    unbiased_running_var: int = 0,
) -> tuple[Tensor, ...]:
    """Y, and in training mode the new running statistics: momentum old + (1 - momentum) batch.

    The attribute ``unbiased_running_var``, which ONNX does not have, is set by `bngrad.torch.autograd.model`.
    """
    data = x if x.ndim > 1 else x.unsqueeze(1)  # a tensor of one axis has one channel
    if not training_mode and (mean.requires_grad or variance.requires_grad):
        # PyTorch's batch norm has no gradient with respect to running statistics.
        shape = [-1, *[1] * (data.ndim - 2)]
        mean, std, scale, bias = (
            tensor.reshape(shape) for tensor in (mean, torch.sqrt(variance + epsilon), scale, bias)
        )
        return ((((data - mean) / std) * scale + bias).reshape(x.shape),)
    if not training_mode:
        y = torch.batch_norm(data, scale, bias, mean, variance, False, 0.0, epsilon, False)
        return (y.reshape(x.shape),)
    y = torch.batch_norm(data, scale, bias, None, None, True, 0.0, epsilon, False)
    axes = [axis for axis in range(data.ndim) if axis != 1]
    many = data.numel() > data.shape[1]
    var, average = torch.var_mean(data, axes, correction=int(unbiased_running_var and many))
    new = [momentum * old + (1 - momentum) * batch for old, batch in ((mean, average), (variance, var))]
    return (y.reshape(x.shape), *new)


@op("InstanceNormalization", since=6)
def instance_norm(x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = _EPSILON) -> Tensor:
    """Each channel of each sample with its own statistics."""
    return torch.instance_norm(x, scale, bias, None, None, True, 0.0, epsilon, False)


@op("GroupNormalization", since=21)
def group_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    epsilon: float = _EPSILON,
    num_groups: int = 1,
    stash_type: int = 1,  # noqa: ARG001 - all is double
) -> Tensor:
    """Each group of channels with its own statistics; scale and bias are of channels, as since opset 21."""
    return torch.group_norm(x, num_groups, scale, bias, epsilon)


@op("LayerNormalization")
def layer_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = _EPSILON,
    stash_type: int = 1,  # noqa: ARG001 - all is double
) -> tuple[Tensor, Tensor, Tensor]:
    """Y, and the mean and 1 / the standard deviation over the last axes; scale and bias are broadcast."""
    axes = tuple(range(axis % x.ndim, x.ndim))
    normalized = functional.layer_norm(x, [x.shape[dim] for dim in axes], None, None, epsilon)
    y = normalized * scale if bias is None else normalized * scale + bias
    variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    return y, mean, torch.rsqrt(variance + epsilon)


@op("RMSNormalization")
def rms_norm(
    x: Tensor,
    scale: Tensor,
    *,
    axis: int = -1,
    epsilon: float = _EPSILON,
    stash_type: int = 1,  # noqa: ARG001 - all is double
) -> Tensor:
    """X over its root mean square over the last axes, times a scale that is broadcast."""
    return functional.rms_norm(x, list(x.shape[axis % x.ndim :]), None, epsilon) * scale


@op("LRN")
def local_response_norm(
    x: Tensor,
    *,
    alpha: float = float32(1e-4),
    beta: float = float32(0.75),
    bias: float = 1.0,
    size: int = 1,
) -> Tensor:
    """X over a power of the sum of squares of neighbouring channels; of an even size, more of them after it."""
    flipped = size % 2 == 0  # PyTorch has more of them before it
    y = functional.local_response_norm(x.flip(1) if flipped else x, size, alpha, beta, bias)
    return y.flip(1) if flipped else y


@op("LpNormalization")
def lp_normalization(x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    """X over its p-norm, and 0 where that is 0."""
    length = torch.linalg.vector_norm(x, p, axis, keepdim=True)
    empty = length == 0
    return torch.where(empty, 0.0, x / torch.where(empty, 1.0, length))


@op("MeanVarianceNormalization")
def mean_variance_normalization(x: Tensor, *, axes: Sequence[int] = (0, 2, 3)) -> Tensor:
    """X without its mean, over its standard deviation plus 1e-9."""
    variance, mean = torch.var_mean(x, list(axes), correction=0, keepdim=True)
    return (x - mean) / (torch.sqrt(variance) + float32(1e-9))
