"""Decompositions of ATen ops in a traced step: batch norm, cross entropy, adaptive pooling, resampling."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._decomp import decomposition_table, get_decompositions
from torch._refs import native_layer_norm

from bngrad.errors import UnsupportedNodeError
from bngrad.torch.joint.translations import joint_translations

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ATEN = torch.ops.aten

_PYTORCHS = (
    # torch.onnx.export writes batch norm in inference mode, and a wrong total weight of nll_loss.
    _ATEN.native_batch_norm,
    _ATEN._native_batch_norm_legit,
    _ATEN._native_batch_norm_legit_functional,
    _ATEN.nll_loss_forward,
    _ATEN.nll_loss2d_forward,
)
"""The ops of a forward pass that PyTorch's own decompositions replace."""

_UPSAMPLINGS = (
    *(f"{kind}{rank}d" for rank in (1, 2, 3) for kind in ("upsample_nearest", "_upsample_nearest_exact")),
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d"),
)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The decompositions for `make_fx`, except those of the gradients that `joint_translations` writes."""
    translated = joint_translations()
    table: dict[Any, Callable[..., Any]] = dict(get_decompositions(_PYTORCHS))
    table |= {
        gradient: decomposed
        for gradient, decomposed in decomposition_table.items()
        if "_backward" in str(gradient) and gradient not in translated
    }
    table[_ATEN.var_mean.correction] = _variance_and_mean
    table[_ATEN.native_layer_norm.default] = _layer_norm
    table[_ATEN.adaptive_max_pool2d.default] = _adaptive_max_pool
    table[_ATEN.adaptive_max_pool3d.default] = _adaptive_max_pool
    table[_ATEN.adaptive_max_pool2d_backward.default] = _adaptive_max_pool_backward
    table[_ATEN.adaptive_max_pool3d_backward.default] = _adaptive_max_pool_backward
    for rank in (2, 3):
        forward, backward = (getattr(_ATEN, f"_adaptive_avg_pool{rank}d{kind}") for kind in ("", "_backward"))
        table[forward.default] = _adaptive_average_pool
        table[backward.default] = _adaptive_average_pool_backward
    for name in _UPSAMPLINGS:
        table[getattr(_ATEN, f"{name}_backward").default] = partial(
            _upsample_backward, getattr(_ATEN, name).default
        )
    return table


def _variance_and_mean(
    x: torch.Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.var(x, dim, correction=correction, keepdim=keepdim), torch.mean(x, dim, keepdim=keepdim)


def _layer_norm(x: torch.Tensor, *arguments: Any) -> Any:  # noqa: ANN401
    """The decomposition for float64, of which ONNX's LayerNormalization computes float32 statistics."""
    return native_layer_norm(x, *arguments) if x.dtype == torch.float64 else NotImplemented


def _adaptive_max_pool(x: torch.Tensor, output_size: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """A max pooling: the windows have one size, and follow one another."""
    kernel = _windows(x, output_size)
    pool = _ATEN.max_pool2d_with_indices if len(kernel) == 2 else _ATEN.max_pool3d_with_indices
    result: tuple[torch.Tensor, torch.Tensor] = pool(x, kernel)
    return result


def _adaptive_max_pool_backward(grad_output: torch.Tensor, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    kernel = _windows(x, indices.shape[2:])
    padding, dilation = [0] * len(kernel), [1] * len(kernel)
    rank = len(kernel)
    pool = _ATEN.max_pool2d_with_indices_backward if rank == 2 else _ATEN.max_pool3d_with_indices_backward
    result: torch.Tensor = pool(grad_output, x, kernel, kernel, padding, dilation, False, indices)
    return result


def _windows(x: torch.Tensor, output_size: Sequence[int]) -> list[int]:
    sizes = [int(size) for size in x.shape[x.ndim - len(output_size) :]]
    counts = [int(count) for count in output_size]
    if any(size % count for size, count in zip(sizes, counts, strict=True)):
        raise UnsupportedNodeError(
            f"the module has an adaptive max pooling of {sizes} elements to {counts}, with windows that differ in "
            "size; expected an output size that divides that of the input"
        )
    return [size // count for size, count in zip(sizes, counts, strict=True)]


def _adaptive_average_pool(x: torch.Tensor, output_size: Sequence[int]) -> torch.Tensor:
    """A linear map of each axis: window i of n has the elements from floor(i S / n) to ceil((i + 1) S / n)."""
    for axis in range(-len(output_size), 0):
        if x.shape[axis] != output_size[axis]:
            x = _along(x, axis, _means(int(x.shape[axis]), int(output_size[axis]), x).T)
    return x


def _adaptive_average_pool_backward(grad_output: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The transposed maps; the batch and the channels have equal sizes on both sides."""
    for axis in range(1 - x.ndim, 0):
        if x.shape[axis] != grad_output.shape[axis]:
            means = _means(int(x.shape[axis]), int(grad_output.shape[axis]), x)
            grad_output = _along(grad_output, axis, means)
    return grad_output


def _upsample_backward(
    upsample: Callable[..., torch.Tensor],
    grad_output: torch.Tensor,
    output_size: Sequence[int],
    input_size: Sequence[int],
    *options: Any,  # noqa: ANN401 - align_corners, and the scales
) -> torch.Tensor:
    """The transpose of the linear map of each axis, whose matrix is the op's output for the unit vectors."""
    rank = len(output_size)
    scales = list(options[len(options) - rank :])
    for offset in range(rank):
        axis, size = offset - rank, int(input_size[2 + offset])
        if size == output_size[offset] and scales[offset] is None:
            continue
        ones = [1] * rank
        units = torch.eye(size, dtype=grad_output.dtype).reshape(
            [1, size, *ones[:offset], size, *ones[offset + 1 :]]
        )
        sizes = [*ones[:offset], int(output_size[offset]), *ones[offset + 1 :]]
        of_axis = [scale if index == offset else None for index, scale in enumerate(scales)]
        matrix = upsample(units, sizes, *options[: len(options) - rank], *of_axis).reshape(size, -1)
        grad_output = _along(grad_output, axis, matrix.T)
    return grad_output


def _along(x: torch.Tensor, axis: int, matrix: torch.Tensor) -> torch.Tensor:
    return torch.matmul(x.transpose(axis, -1), matrix).transpose(axis, -1)


def _means(size: int, windows: int, like: torch.Tensor) -> torch.Tensor:
    """[windows, size]: the share of each element in each mean."""
    rows = []
    for index in range(windows):
        begin, end = index * size // windows, math.ceil((index + 1) * size / windows)
        rows.append([1 / (end - begin) if begin <= at < end else 0.0 for at in range(size)])
    return torch.tensor(rows, dtype=like.dtype)
