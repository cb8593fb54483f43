"""AffineGrid and GridSample: onnx's reference evaluator computes the places in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from bngrad.validation.training_ops._types import Array, Integers, Mask

_A = -0.75


def _cubic(t: Array) -> list[Array]:
    def near(s: Array) -> Array:
        return ((_A + 2) * s - (_A + 3)) * s * s + 1

    def far(s: Array) -> Array:
        return ((_A * s - 5 * _A) * s + 8 * _A) * s - 4 * _A

    return [far(1 + t), near(t), near(1 - t), far(2 - t)]


_LINEAR: tuple[int, Callable[[Array], list[Array]]] = (0, lambda t: [1 - t, t])
_CUBIC: tuple[int, Callable[[Array], list[Array]]] = (-1, _cubic)
_NEAREST: tuple[int, Callable[[Array], list[Array]]] = (0, lambda t: [np.ones_like(t)])
_MODES = {"nearest": _NEAREST, "bilinear": _LINEAR, "linear": _LINEAR, "bicubic": _CUBIC, "cubic": _CUBIC}
"""The first element that is read, from the place rounded down, and the weights of it and those that follow."""


def affine_grid(theta: Array, size: Integers, *, align_corners: int = 0) -> Array:
    """Returns theta [p, 1] for all places p, whose coordinates are from -1 to 1, the last axis first."""
    axes = [np.linspace(-1, 1, n) if align_corners else (2 * np.arange(n) + 1) / n - 1 for n in size[2:]]
    places = np.meshgrid(*axes, indexing="ij")
    result: Array = np.einsum("nij,j...->n...i", theta, np.stack([*reversed(places), np.ones_like(places[0])]))
    return result


def grid_sample(
    X: Array, grid: Array, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Array:
    """Returns Y[n, c, p] = the sum of w X[n, c, i] over the elements i around the place grid[n, p]."""
    N, C, *sizes = X.shape
    out, begin_at, weigh = grid.shape[1:-1], *_MODES[mode]
    index, weight = np.zeros((N, *out, 1), np.int64), np.ones((N, *out, 1))
    for axis, size in enumerate(sizes):
        n = grid[..., len(sizes) - 1 - axis] + 1
        place = n / 2 * (size - 1) if align_corners else (n * size - 1) / 2
        begin = np.rint(place) if mode == "nearest" else np.floor(place)
        weights = np.stack(weigh(place - begin), axis=-1)
        positions = (begin[..., None] + begin_at + np.arange(weights.shape[-1])).astype(np.int64)
        there, inside = _padded(positions, size, padding_mode, align_corners=bool(align_corners))
        taps = (N, *out, -1)
        index = (index[..., None] * size + there[..., None, :]).reshape(taps)
        weight = (weight[..., None] * (weights * inside)[..., None, :]).reshape(taps)
    picked = np.take_along_axis(X.reshape(N, C, -1), index.reshape(N, 1, -1), axis=2)
    return np.asarray((picked.reshape(N, C, *index.shape[1:]) * weight[:, None]).sum(-1))


def _padded(i: Integers, size: int, mode: str, *, align_corners: bool) -> tuple[Integers, Mask]:
    """Returns the elements that are read at positions, and whether they count."""
    inside = (i >= 0) & (i < size)
    if mode == "reflection":
        period = max(2 * (size - 1), 1) if align_corners else 2 * size
        i = i % period
        i = np.minimum(i, period - i - (not align_corners))
    return np.clip(i, 0, size - 1), inside if mode == "zeros" else np.ones_like(inside)
