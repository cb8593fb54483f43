"""The gradient of Conv, for any number of spatial dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bngrad.validation.training_ops._windows import slide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.validation.training_ops._types import Array


def conv_grad(
    dY: Array,
    X: Array,
    W: Array,
    *,
    auto_pad: str | None = None,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> tuple[Array, Array, Array]:
    """Returns the three transposes of Conv.

    Y[n, m, o] = B[m] + sum over c, k of W[m, c, k] * X[n, c, o * stride + k * dilation - pad];
    dX[n, c, o * stride + k * dilation - pad] += sum over m of dY[n, m, o] * W[m, c, k];
    dW[m, c, k] = sum over n, o of dY[n, m, o] * X[n, c, o * stride + k * dilation - pad];
    dB[m] = sum over n, o of dY[n, m, o]. With groups, c runs over the input channels of the group of m.
    """
    spatial = X.ndim - 2
    out = list(range(2, 2 + spatial))
    windows = slide(X.shape[2:], kernel_shape or W.shape[2:], strides, pads, dilations, auto_pad)
    dX, dW = [], []
    for dy, column, weight in zip(
        np.split(dY, group, axis=1),
        np.split(windows.view(X, 0), group, axis=1),
        np.split(W, group),
        strict=True,
    ):
        dcolumn = np.tensordot(dy, weight, ([1], [0]))  # [N, *out, C, *kernel]
        dX.append(windows.scatter(np.moveaxis(dcolumn, 1 + spatial, 1)))
        dW.append(np.tensordot(dy, column, ([0, *out], [0, *out])))
    return np.concatenate(dX, axis=1), np.concatenate(dW), dY.sum(axis=(0, *out))
