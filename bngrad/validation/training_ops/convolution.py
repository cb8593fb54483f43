"""Conv, ConvTranspose and the gradient of Conv, for any number of spatial dimensions.

Conv is implemented here because onnx's reference evaluator loops over the elements of the kernel in Python, and
the kernel of a lowered weight gradient is as large as an image. Its ConvTranspose computes only one output channel
per group.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from bngrad.graph.window_axes import WindowAxis, split_padding
from bngrad.validation.training_ops._windows import Windows, slide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.validation.training_ops._types import Array


_COLUMNS = 1 << 25
"""The most elements of windows that `conv` copies at a time, if one sample has no more."""


def conv(
    X: Array,
    W: Array,
    B: Array | None = None,
    *,
    auto_pad: str | None = None,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """Returns Y with Y[n, m, o] = B[m] + sum over c, k of W[m, c, k] * X[n, c, o * stride + k * dilation - pad].

    With groups, c runs over the input channels of the group of m.
    """
    spatial = X.ndim - 2
    windows = slide(X.shape[2:], kernel_shape or W.shape[2:], strides, pads, dilations, auto_pad)
    weight = W.reshape(group, W.shape[0] // group, -1)  # [group, M, C * kernel]
    out, length = math.prod(windows.out), weight.shape[2]
    # The windows of some samples at a time, which are copied to be factors of matrix products.
    count = max(1, _COLUMNS // max(1, group * length * out))
    parts = []
    for start in range(0, max(1, len(X)), count):
        view = windows.view(X[start : start + count], 0)  # [N, C, *out, *kernel]
        columns = view.transpose(1, *range(2 + spatial, 2 + 2 * spatial), 0, *range(2, 2 + spatial))
        product = weight @ columns.reshape(group, length, len(view) * out)  # [group, M, N * out]
        parts.append(np.moveaxis(product.reshape(len(W), len(view), *windows.out), 1, 0))
    Y = np.concatenate(parts)
    return Y if B is None else Y + B.reshape(-1, *[1] * spatial)


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
    """Returns dX, dW and dB, the transposes of Conv.

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


def conv_transpose(
    X: Array,
    W: Array,
    B: Array | None = None,
    *,
    auto_pad: str | None = None,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Array:
    """Returns Y with Y[n, m, i * stride + k * dilation - pad] += sum over c of X[n, c, i] * W[c, m, k], plus B[m].

    With groups, c runs over the input channels of the group of m.
    """
    spatial = X.ndim - 2
    windows = _over_output(
        X.shape[2:],
        tuple(kernel_shape or W.shape[2:]),
        tuple(strides or [1] * spatial),
        tuple(dilations or [1] * spatial),
        tuple(output_padding or [0] * spatial),
        None if output_shape is None else tuple(output_shape)[-spatial:],
        pads,
        auto_pad or "NOTSET",
    )
    Y = np.concatenate(
        [
            windows.scatter(np.moveaxis(np.tensordot(x, w, ([1], [0])), 1 + spatial, 1))
            for x, w in zip(np.split(X, group, axis=1), np.split(W, group), strict=True)
        ],
        axis=1,
    )
    return Y if B is None else Y + B.reshape(-1, *[1] * spatial)


def _over_output(
    sizes: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    output_padding: tuple[int, ...],
    output_shape: tuple[int, ...] | None,
    pads: Sequence[int] | None,
    auto_pad: str,
) -> Windows:
    """Returns the windows of a ConvTranspose over its output, one for each element of its input."""
    rank = len(sizes)
    whole = [
        (n - 1) * s + (k - 1) * d + 1 + added
        for n, s, k, d, added in zip(sizes, stride, kernel, dilation, output_padding, strict=True)
    ]
    same = auto_pad in {"SAME_UPPER", "SAME_LOWER"}
    if output_shape is None and not same:
        declared = list(pads or [0] * (2 * rank)) if auto_pad == "NOTSET" else [0] * (2 * rank)
        begin, end = declared[:rank], declared[rank:]
    else:
        target = output_shape or tuple(n * s for n, s in zip(sizes, stride, strict=True))
        upper = auto_pad == "SAME_UPPER"
        pairs = [split_padding(n - size, upper=upper) for n, size in zip(whole, target, strict=True)]
        begin, end = ([pair[side] for pair in pairs] for side in (0, 1))
    out = output_shape or tuple(n - before - after for n, before, after in zip(whole, begin, end, strict=True))
    columns = zip(out, kernel, stride, dilation, begin, end, sizes, strict=True)
    return Windows(tuple(WindowAxis(*column) for column in columns))
