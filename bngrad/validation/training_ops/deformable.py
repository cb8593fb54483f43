"""DeformConv: onnx's reference evaluator computes the places in float32, and only in two dimensions."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from bngrad.validation.training_ops.sampling import grid_sample

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.validation.training_ops._types import Array


def deform_conv(
    X: Array,
    W: Array,
    offset: Array,
    B: Array | None = None,
    mask: Array | None = None,
    *,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    offset_group: int = 1,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """Returns W S mask + B, of the samples S of X at the places of a convolution plus the offset."""
    (N, C, *sizes), (outputs, inputs, *kernel), out = X.shape, W.shape, offset.shape[2:]
    assert kernel_shape is None or list(kernel_shape) == kernel  # noqa: S101 - onnx's checker does not compare them
    rank, count, groups = len(sizes), prod(kernel), N * offset_group
    strides, dilations, pads = strides or [1] * rank, dilations or [1] * rank, pads or [0] * rank
    offset = offset.reshape(groups, count, rank, *out)
    grid = []
    for axis, size in enumerate(sizes):
        within = np.indices(kernel)[axis].reshape(count, *[1] * rank) * dilations[axis] - pads[axis]
        place = offset[:, :, axis] + within + np.indices(out)[axis] * strides[axis]
        grid.append((2 * place + 1) / size - 1)
    samples = grid_sample(X.reshape(groups, C // offset_group, *sizes), np.stack(grid[::-1], axis=-1))
    if mask is not None:
        samples = samples * mask.reshape(groups, 1, count, *out)
    columns = samples.reshape(N, group, inputs * count, prod(out))
    rows = W.reshape(group, outputs // group, inputs * count)
    bias = 0.0 if B is None else B.reshape(-1, *[1] * rank)
    return np.asarray(np.einsum("gok,ngkp->ngop", rows, columns).reshape(N, outputs, *out) + bias)
