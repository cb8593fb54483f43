"""Reductions; axes are an input or, in older opsets, an attribute."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bngrad.torch.autograd.table import UnsupportedFormError, numbers, op

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bngrad.autodiff.ties import Tie


def _extreme(x: Tensor, axes: Sequence[int], *, largest: bool) -> Tensor:
    if any(x.shape[axis] == 0 for axis in axes):  # which PyTorch refuses
        if not x.is_floating_point():
            raise UnsupportedFormError("it has no elements to reduce, and is not of floats")
        sizes = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
        return x.new_full(sizes, -inf if largest else inf)
    return (torch.amax if largest else torch.amin)(x, axes, keepdim=True)


def _first(x: Tensor, axes: Sequence[int], *, largest: bool) -> Tensor:
    """The largest or smallest elements along some axes; the first of equal ones gets the gradient."""
    rows = x.movedim(axes, list(range(-len(axes), 0))).flatten(-len(axes))
    extremes = (rows.max(-1) if largest else rows.min(-1)).values
    return extremes.reshape([1 if axis in axes else size for axis, size in enumerate(x.shape)])


def _product(x: Tensor, axes: Sequence[int]) -> Tensor:
    for axis in axes:
        x = x.prod(axis, keepdim=True)
    return x


_REDUCTIONS: dict[str, Callable[[Tensor, Sequence[int]], Tensor]] = {
    "ReduceL1": lambda x, axes: x.abs().sum(axes, keepdim=True),
    "ReduceL2": lambda x, axes: torch.linalg.vector_norm(x, dim=axes, keepdim=True),
    "ReduceLogSum": lambda x, axes: x.sum(axes, keepdim=True).log(),
    "ReduceLogSumExp": lambda x, axes: torch.logsumexp(x, axes, keepdim=True),
    "ReduceMax": partial(_extreme, largest=True),
    "ReduceMean": lambda x, axes: x.mean(axes, keepdim=True),
    "ReduceMin": partial(_extreme, largest=False),
    "ReduceProd": _product,
    "ReduceSum": lambda x, axes: x.sum(axes, keepdim=True),
    "ReduceSumSquare": lambda x, axes: x.square().sum(axes, keepdim=True),
}
"""The reductions, which keep the axes that they reduce."""


def _register(name: str, reduced: Callable[[Tensor, Sequence[int]], Tensor]) -> None:
    @op(name)
    def reduction(
        x: Tensor,
        axes_input: Tensor | None = None,
        *,
        axes: Sequence[int] | None = None,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
        tie: Tie = "split",
    ) -> Tensor:
        dims = axes if axes_input is None else numbers(axes_input)
        if not dims and noop_with_empty_axes:
            if name not in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"):
                raise UnsupportedFormError("it has noop_with_empty_axes = 1 and no axes")
            return x.clone()
        every = sorted(axis % x.ndim for axis in dims) if dims else list(range(x.ndim))
        if tie == "first" and every and x.numel():
            result = _first(x, every, largest=name == "ReduceMax")
            return result if keepdims else result.squeeze(every)
        result = reduced(x, every) if every else reduced(x.reshape(1), [0]).reshape(())
        return result if keepdims or not every else result.squeeze(every)


for _name, _reduced in _REDUCTIONS.items():
    _register(_name, _reduced)


@op("GlobalAveragePool")
def global_average_pool(x: Tensor) -> Tensor:
    """The mean over the spatial axes."""
    return x.mean(list(range(2, x.ndim)), keepdim=True)


@op("GlobalMaxPool")
def global_max_pool(x: Tensor, *, tie: Tie = "split") -> Tensor:
    """The largest over the spatial axes."""
    if tie == "first" and x.ndim > 2:
        return _first(x, list(range(2, x.ndim)), largest=True)
    return torch.amax(x, list(range(2, x.ndim)), keepdim=True)


@op("CumSum")
def cumulative_sum(x: Tensor, axis: Tensor, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    """The sums of all elements up to each along an axis; with exclusive, without it."""
    return _cumulative(torch.cumsum, torch.zeros_like, x, axis, exclusive=exclusive, reverse=reverse)


@op("CumProd")
def cumulative_product(x: Tensor, axis: Tensor, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    """The products of all elements up to each along an axis; with exclusive, without it."""
    return _cumulative(torch.cumprod, torch.ones_like, x, axis, exclusive=exclusive, reverse=reverse)


def _cumulative(
    function: Callable[[Tensor, int], Tensor],
    begin: Callable[[Tensor], Tensor],
    x: Tensor,
    axis: Tensor,
    *,
    exclusive: int,
    reverse: int,
) -> Tensor:
    (dim,) = numbers(axis)
    x = x.flip(dim) if reverse else x
    if exclusive:
        first = begin(x.narrow(dim, 0, min(1, x.shape[dim])))
        x = torch.cat([first, x.narrow(dim, 0, max(x.shape[dim] - 1, 0))], dim)
    x = function(x, dim)
    return x.flip(dim) if reverse else x
