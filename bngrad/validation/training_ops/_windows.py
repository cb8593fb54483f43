"""The windows that convolution and pooling slide over [N, C, *spatial], and their transpose.

Output position o and kernel tap k meet input position o * stride + k * dilation - pad. `Windows.view` reads
the input there; `Windows.scatter` adds to it: the transpose, which is all that a gradient needs.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from bngrad.validation.training_ops._types import Array, Index, Integers

Number = TypeVar("Number", np.float64, np.int64)


@dataclass(frozen=True)
class Windows:
    """Geometry of a sliding window, one entry a spatial dimension; make it with `slide`."""

    extent: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    begin: tuple[int, ...]
    """Padding before the first element, as declared or as auto_pad asks."""
    end: tuple[int, ...]
    """Padding behind the last one. With ceil_mode the last window may reach beyond it."""
    out: tuple[int, ...]
    """Number of windows."""

    def view(self, x: NDArray[Number], fill: float) -> NDArray[Number]:
        """Returns what each window holds, [N, C, *out, *kernel], with ``fill`` outside of x."""
        padding = [(0, 0), (0, 0), *self._padding()]
        padded = np.pad(x, padding, constant_values=fill)
        axes = tuple(range(2, x.ndim))
        taps = np.lib.stride_tricks.sliding_window_view(padded, self._reach(), axes)
        steps: list[slice] = [slice(0, (o - 1) * s + 1, s) for o, s in zip(self.out, self.stride, strict=True)]
        every: Index = (slice(None), slice(None), *steps, *(slice(None, None, d) for d in self.dilation))
        return taps[every]

    def scatter(self, columns: Array) -> Array:
        """Returns [N, C, *extent] where each element is the sum of its places in ``columns``, shaped as a view."""
        padding = self._padding()
        padded_extent = [n + before + after for n, (before, after) in zip(self.extent, padding, strict=True)]
        padded = np.zeros([*columns.shape[:2], *padded_extent], columns.dtype)
        for tap in itertools.product(*map(range, self.kernel)):
            here: Index = (..., *tap)
            there: Index = (
                ...,
                *(
                    slice(k * d, k * d + (o - 1) * s + 1, s)
                    for k, d, o, s in zip(tap, self.dilation, self.out, self.stride, strict=True)
                ),
            )
            padded[there] += columns[here]
        inner: Index = (
            ...,
            *(slice(before, before + n) for n, (before, _) in zip(self.extent, padding, strict=True)),
        )
        return padded[inner]

    def counts(self, *, include_pad: bool) -> Integers:
        """Returns the number of taps of each window that lie in x, or in x and its declared padding: [*out]."""
        counts: Integers = np.ones([], np.int64)
        for n, k, s, d, begin, end, o in zip(
            self.extent, self.kernel, self.stride, self.dilation, self.begin, self.end, self.out, strict=True
        ):
            low, high = (-begin, n + end) if include_pad else (0, n)
            taps = np.arange(o)[:, None] * s - begin + np.arange(k) * d
            counts = np.multiply.outer(counts, ((taps >= low) & (taps < high)).sum(axis=1))
        return counts

    def _reach(self) -> tuple[int, ...]:
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    def _padding(self) -> list[tuple[int, int]]:
        """Padding that makes room for every window: more than declared where ceil_mode rounded up."""
        needed = [(o - 1) * s + r for o, s, r in zip(self.out, self.stride, self._reach(), strict=True)]
        return [
            (begin, max(end, need - n - begin))
            for n, begin, end, need in zip(self.extent, self.begin, self.end, needed, strict=True)
        ]


def slide(
    extent: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    auto_pad: str | None = None,
    ceil_mode: int | None = None,
) -> Windows:
    """Resolves the attributes of Conv and of the pools, None for one that is absent, as ONNX defines them."""
    rank = len(extent)
    stride = tuple(strides or [1] * rank)
    dilation = tuple(dilations or [1] * rank)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    if auto_pad in {"SAME_UPPER", "SAME_LOWER"}:
        out = [-(-n // s) for n, s in zip(extent, stride, strict=True)]
        total = [max((o - 1) * s + r - n, 0) for o, s, r, n in zip(out, stride, reach, extent, strict=True)]
        less, more = [t // 2 for t in total], [t - t // 2 for t in total]
        begin, end = (less, more) if auto_pad == "SAME_UPPER" else (more, less)
    else:
        declared = list(pads or []) if auto_pad in {None, "", "NOTSET"} else []
        declared = declared or [0] * (2 * rank)
        begin, end = declared[:rank], declared[rank:]
        out = []
        for n, r, s, before, after in zip(extent, reach, stride, begin, end, strict=True):
            steps = (n + before + after - r) / s
            count = (math.ceil(steps) if ceil_mode else math.floor(steps)) + 1
            # A window that would start behind the data and its first padding does not exist.
            out.append(count - 1 if ceil_mode and (count - 1) * s >= n + before else count)
    return Windows(tuple(extent), tuple(kernel), stride, dilation, tuple(begin), tuple(end), tuple(out))
