"""MaxPool, AveragePool and their gradients, and LpPool, for any number of spatial dimensions; MaxRoiPool.

The forward ops are implemented here because onnx's reference evaluator loops over all windows in Python, and
counts MaxPool's indices from the start of a plane if all strides are 1. Its GlobalMaxPool is correct for two
spatial dimensions only, its LpPool divides by the number of elements in X where a window is padded, and it has no
GlobalLpPool and no MaxRoiPool.

ORT's gradient nodes have no input for the shape of the forward input; the kernels read it from the static type of
their output. Here it is the attribute ``input_sizes``, which `bngrad.validation.float64` adds.
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
    """Returns Y = max over each window, and the index of the first maximum in the flattened X (int64).

    With storage_order 1, the indices are column-major in the spatial dimensions.
    """
    windows = slide(X.shape[2:], kernel_shape, strides, pads, dilations, auto_pad, ceil_mode)
    plane = math.prod(windows.sizes)
    held = windows.view(X, -np.inf).reshape(*X.shape[:2], *windows.out, -1)
    places = windows.view(np.arange(plane).reshape(1, 1, *windows.sizes), -1).reshape(1, 1, *windows.out, -1)
    first = held.argmax(axis=-1, keepdims=True)
    Y = np.take_along_axis(held, first, axis=-1)[..., 0]
    inside = np.take_along_axis(np.broadcast_to(places, held.shape), first, axis=-1)[..., 0]
    if storage_order:
        coordinates = np.unravel_index(inside, windows.sizes)
        inside = np.ravel_multi_index(coordinates, windows.sizes, order="F")
    planes = np.arange(math.prod(X.shape[:2])).reshape(*X.shape[:2], *[1] * len(windows.sizes))
    return Y, planes * plane + inside


def max_pool_grad(
    dY: Array,
    indices: Integers,
    *,
    input_sizes: Sequence[int],
    kernel_shape: Sequence[int],  # noqa: ARG001  this and the following are not needed: the indices suffice
    auto_pad: str | None = None,  # noqa: ARG001
    ceil_mode: int = 0,  # noqa: ARG001
    dilations: Sequence[int] | None = None,  # noqa: ARG001
    pads: Sequence[int] | None = None,  # noqa: ARG001
    storage_order: int = 0,
    strides: Sequence[int] | None = None,  # noqa: ARG001
) -> Array:
    """Returns dX with dX.flat[indices] += dY."""
    if storage_order:
        raise UnsupportedNodeError("MaxPoolGrad has storage_order = 1; ORT's kernel requires row-major indices")
    dX = np.zeros([*dY.shape[:2], *input_sizes], dY.dtype)
    np.add.at(dX.reshape(-1), indices.reshape(-1), dY.reshape(-1))
    return dX


def max_pool_grad_of_x(
    dY: Array,
    X: Array,
    *,
    ceil_mode: int,
    dilations: Sequence[int],
    kernel_shape: Sequence[int],
    pads: Sequence[int],
    strides: Sequence[int],
) -> Array:
    """Returns dX with dX.flat[indices] += dY, with the indices that MaxPool has for X."""
    _, indices = max_pool(
        X, ceil_mode=ceil_mode, dilations=dilations, kernel_shape=kernel_shape, pads=pads, strides=strides
    )
    return max_pool_grad(dY, indices, input_sizes=X.shape[2:], kernel_shape=kernel_shape)


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
    """Returns Y = sum over each window / number of its elements in X (count_include_pad: in X and padding)."""
    windows = slide(X.shape[2:], kernel_shape, strides, pads, dilations, auto_pad, ceil_mode)
    spatial = X.ndim - 2
    total: Array = windows.view(X, 0).sum(axis=tuple(range(-spatial, 0)))
    return total / windows.counts(include_pad=bool(count_include_pad))


def average_pool_grad(
    dY: Array,
    *,
    input_sizes: Sequence[int],
    kernel_shape: Sequence[int],
    auto_pad: str | None = None,
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """Returns dX, the transpose of `average_pool`: each window adds dY / count to its elements in X."""
    windows = slide(input_sizes, kernel_shape, strides, pads, dilations, auto_pad, ceil_mode)
    share = dY / windows.counts(include_pad=bool(count_include_pad))
    columns = share.reshape(*share.shape, *[1] * len(windows.kernel))
    return windows.scatter(np.broadcast_to(columns, [*share.shape, *windows.kernel]))


def lp_pool(
    X: Array,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str | None = None,
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    p: int = 2,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """Returns Y = (sum |x|^p)^(1/p) over the elements of each window in X."""
    windows = slide(X.shape[2:], kernel_shape, strides, pads, dilations, auto_pad, ceil_mode)
    powers: Array = windows.view(np.abs(X) ** p, 0).sum(axis=tuple(range(2 - X.ndim, 0)))
    return powers ** (1 / p)


def global_lp_pool(X: Array, *, p: int = 2) -> Array:
    """Returns Y = (sum |x|^p)^(1/p) over the spatial dimensions, which are kept with size 1."""
    powers: Array = (np.abs(X) ** p).sum(axis=tuple(range(2, X.ndim)), keepdims=True)
    return powers ** (1 / p)


def global_max_pool(X: Array) -> Array:
    """Returns Y = max over the spatial dimensions, which are kept with size 1."""
    Y: Array = X.max(axis=tuple(range(2, X.ndim)), keepdims=True)
    return Y


def max_roi_pool(X: Array, rois: Array, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0) -> Array:
    """Returns Y = max over each bin of each region, 0 for an empty bin; the regions are [image, x1, y1, x2, y2].

    ONNX does not define the bins; these are those of ONNX Runtime.
    """
    Y = np.zeros((len(rois), X.shape[1], *pooled_shape), X.dtype)
    for y, (image, *edges) in zip(Y, rois, strict=True):
        scaled = np.asarray(edges, X.dtype) * X.dtype.type(spatial_scale)
        whole = np.floor(np.abs(scaled))
        rounded = np.copysign(whole + (np.abs(scaled) - whole >= 0.5), scaled)  # halves away from 0
        bins = []
        for start, end, count, length in zip(
            rounded[[1, 0]], rounded[[3, 2]], pooled_shape, X.shape[2:], strict=True
        ):
            size = max(end - start + 1, 1) / X.dtype.type(count)
            places = np.arange(count + 1).astype(X.dtype) * size
            begins, ends = np.floor(places[:-1]), np.ceil(places[1:])
            within = np.clip(np.stack([begins, ends], axis=1) + start, 0, length)
            bins.append([slice(*pair) for pair in within.astype(int)])
        for row, column in np.ndindex(*pooled_shape):
            part = X[int(image)][:, bins[0][row], bins[1][column]]
            if part.size:
                y[:, row, column] = part.max(axis=(1, 2))
    return Y
