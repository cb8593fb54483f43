"""MaxPool, AveragePool and their gradients, for any number of spatial dimensions.

The forward ops are here although onnx's reference evaluator has them: that one loops over every window in
Python, about 100 times slower, and counts MaxPool's indices from the start of a plane where all strides are 1. Its
GlobalMaxPool is right for images only.

ORT's gradient nodes do not get the shape of the forward input: its kernels read it from the static type of their
output. ``input_extent`` stands for that; `bngrad.validation.float64` fills it in.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from bngrad.errors import UnsupportedNodeError
from bngrad.validation.training_ops._windows import slide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.validation.training_ops._types import Array, Integers


def max_pool(
    X: Array,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str | None = None,
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    storage_order: int = 0,
    strides: Sequence[int] | None = None,
) -> tuple[Array, Integers]:
    """Returns Y = max over each window; Indices = where the first maximum is in X flattened (int64).

    With storage_order 1 an index counts the spatial dimensions in column-major order.
    """
    windows = slide(X.shape[2:], kernel_shape, strides, pads, dilations, auto_pad, ceil_mode)
    plane = math.prod(windows.extent)
    held = windows.view(X, -np.inf).reshape(*X.shape[:2], *windows.out, -1)
    places = windows.view(np.arange(plane).reshape(1, 1, *windows.extent), -1).reshape(1, 1, *windows.out, -1)
    first = held.argmax(axis=-1, keepdims=True)
    Y = np.take_along_axis(held, first, axis=-1)[..., 0]
    inside = np.take_along_axis(np.broadcast_to(places, held.shape), first, axis=-1)[..., 0]
    if storage_order:
        coordinates = np.unravel_index(inside, windows.extent)
        inside = np.ravel_multi_index(coordinates, windows.extent, order="F")
    planes = np.arange(math.prod(X.shape[:2])).reshape(*X.shape[:2], *[1] * len(windows.extent))
    return Y, planes * plane + inside


def max_pool_grad(
    dY: Array,
    indices: Integers,
    *,
    input_extent: Sequence[int],
    kernel_shape: Sequence[int],  # noqa: ARG001  this and all below: the indices say it all
    auto_pad: str | None = None,  # noqa: ARG001
    ceil_mode: int = 0,  # noqa: ARG001
    dilations: Sequence[int] | None = None,  # noqa: ARG001
    pads: Sequence[int] | None = None,  # noqa: ARG001
    storage_order: int = 0,
    strides: Sequence[int] | None = None,  # noqa: ARG001
) -> Array:
    """Returns dX with dX.flat[indices] += dY: a maximum's gradient goes where the maximum was."""
    if storage_order:
        raise UnsupportedNodeError("MaxPoolGrad with storage_order = 1: ORT's kernel takes row-major indices")
    dX = np.zeros([*dY.shape[:2], *input_extent], dY.dtype)
    np.add.at(dX.reshape(-1), indices.reshape(-1), dY.reshape(-1))
    return dX


def average_pool(
    X: Array,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str | None = None,
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """Returns Y = sum over each window / its number of taps in X; with count_include_pad, in X and its padding."""
    windows = slide(X.shape[2:], kernel_shape, strides, pads, dilations, auto_pad, ceil_mode)
    spatial = X.ndim - 2
    total: Array = windows.view(X, 0).sum(axis=tuple(range(-spatial, 0)))
    return total / windows.counts(include_pad=bool(count_include_pad))


def average_pool_grad(
    dY: Array,
    *,
    input_extent: Sequence[int],
    kernel_shape: Sequence[int],
    auto_pad: str | None = None,
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """Returns dX = the transpose of `average_pool`: each window hands dY / its count to its taps in X."""
    windows = slide(input_extent, kernel_shape, strides, pads, dilations, auto_pad, ceil_mode)
    share = dY / windows.counts(include_pad=bool(count_include_pad))
    columns = share.reshape(*share.shape, *[1] * len(windows.kernel))
    return windows.scatter(np.broadcast_to(columns, [*share.shape, *windows.kernel]))


def global_max_pool(X: Array) -> Array:
    """Returns Y = max over the spatial dimensions, which are kept."""
    Y: Array = X.max(axis=tuple(range(2, X.ndim)), keepdims=True)
    return Y
