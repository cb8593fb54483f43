"""Ops that move elements: ConcatTraining, SplitTraining, Pad, and the gradients of Slice and Gather."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from bngrad.validation.training_ops._types import Array, Integers


def concat_training(*inputs: Array, axis: int) -> tuple[Array, Integers]:
    """Returns Y = Concat(inputs), and the length of each input along the axis (int64)."""
    lengths = np.array([x.shape[axis] for x in inputs], np.int64)
    return np.concatenate(inputs, axis=axis), lengths


def split_training(X: Array, lengths: Integers, *, axis: int = 0) -> tuple[Array, ...]:
    """Returns X split along the axis into parts of the given lengths."""
    return tuple(np.split(X, np.cumsum(lengths)[:-1], axis=axis))


def slice_grad(
    dY: Array,
    shape: Integers,
    starts: Integers,
    ends: Integers,
    axes: Integers | None = None,
    steps: Integers | None = None,
) -> Array:
    """Returns dX of the given shape: dX[slice] = dY, 0 elsewhere."""
    dX = np.zeros(shape, dY.dtype)
    where = [slice(None)] * dX.ndim
    along = range(len(starts)) if axes is None else axes.tolist()
    by = [1] * len(starts) if steps is None else steps.tolist()
    for axis, start, end, step in zip(along, starts, ends, by, strict=True):
        where[axis] = slice(start, end, step)
    dX[tuple(where)] = dY
    return dX


def gather_grad(shape: Integers, indices: Integers, dY: Array, *, axis: int = 0) -> Array:
    """Returns dX of the given shape: dX[..., indices, ...] += dY along the axis."""
    dX = np.zeros(shape, dY.dtype)
    axis %= dX.ndim
    # dY has the dimensions of ``indices`` in place of X's axis; both are moved to the front.
    index_axes = range(axis, axis + indices.ndim)
    np.add.at(np.moveaxis(dX, axis, 0), indices, np.moveaxis(dY, index_axes, range(indices.ndim)))
    return dX


def gather_elements_grad(dY: Array, shape: Integers, indices: Integers, *, axis: int = 0) -> Array:
    """Returns dX of the given shape: dX[i, indices[i, j], ...] += dY[i, j, ...], the index at the axis."""
    dX = np.zeros(shape, dY.dtype)
    where: list[Integers] = list(np.indices(indices.shape, sparse=True))
    where[axis] = indices
    np.add.at(dX, tuple(where), dY)
    return dX


def gather_nd_grad(shape: Integers, indices: Integers, dY: Array, *, batch_dims: int = 0) -> Array:
    """Returns dX of the given shape: dX[b, indices[b, i]] += dY[b, i], where indices[b, i] is an index tuple."""
    dX = np.zeros(shape, dY.dtype)
    batch = np.indices(indices.shape[:-1], sparse=True)[:batch_dims]
    np.add.at(dX, (*batch, *np.moveaxis(indices, -1, 0)), dY)
    return dX


def pad(
    data: Array,
    pads: Integers,
    value: Array | None = None,
    axes: Integers | None = None,
    *,
    mode: str = "constant",
) -> Array:
    """Returns data with pads[i] elements added before axis i, and pads[rank + i] after it.

    Negative numbers remove elements, which onnx's reference evaluator does not support.
    """
    along = list(range(data.ndim)) if axes is None else [int(axis) % data.ndim for axis in axes]
    widths = [(0, 0)] * data.ndim
    for axis, before, after in zip(along, pads[: len(along)], pads[len(along) :], strict=True):
        widths[axis] = (int(before), int(after))
    fill: dict[str, Any] = {"constant_values": 0 if value is None else value} if mode == "constant" else {}
    any_mode: Any = mode  # NumPy annotates it as a literal
    padded: Array = np.pad(data, [(max(b, 0), max(a, 0)) for b, a in widths], mode=any_mode, **fill)
    return padded[tuple(slice(max(-b, 0), n + min(a, 0)) for n, (b, a) in zip(padded.shape, widths, strict=True))]


def flatten(X: Array, *, axis: int = 1) -> Array:
    """Returns X as a matrix whose rows are the dimensions before the axis.

    It is implemented here because onnx's reference evaluator fails if there are no rows.
    """
    return X.reshape(math.prod(X.shape[:axis]), math.prod(X.shape[axis:]))


def gather_elements(X: Array, indices: Integers, *, axis: int = 0) -> Array:
    """Returns Y[i, j, ...] = X[i, indices[i, j, ...], ...], the index at the axis.

    It is implemented here because onnx's reference evaluator fails if the axis is negative, or indices are smaller
    than X.
    """
    where: list[Integers] = list(np.indices(indices.shape, sparse=True))
    where[axis] = indices
    return X[tuple(where)]
