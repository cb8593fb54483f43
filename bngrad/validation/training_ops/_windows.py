"""The sliding windows of convolution and pooling over [N, C, *spatial], and their transpose.

Kernel element k of output position o is at input position o * stride + k * dilation - pad. `Windows.view` reads
the input there. `Windows.scatter` is its transpose, which adds to the input; gradients need only these two.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from bngrad.graph.window_axes import WindowAxis, window_axes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from bngrad.validation.training_ops._types import Array, Index, Integers

Number = TypeVar("Number", np.float64, np.int64)


@dataclass(frozen=True)
class Windows:
    """The geometry of sliding windows, with one entry per spatial dimension; created by `slide`."""

    axes: tuple[WindowAxis, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The spatial dimensions of the input."""
        return tuple(axis.size for axis in self.axes)

    @property
    def kernel(self) -> tuple[int, ...]:
        """The spatial dimensions of a window."""
        return tuple(axis.kernel for axis in self.axes)

    @property
    def out(self) -> tuple[int, ...]:
        """The number of windows, the spatial dimensions of the output."""
        return tuple(axis.out for axis in self.axes)

    def view(self, x: NDArray[Number], fill: float) -> NDArray[Number]:
        """Returns the elements of each window, [N, C, *out, *kernel], with ``fill`` outside of x."""
        padding = [(0, 0), (0, 0), *self._padding()]
        padded = np.pad(x, padding, constant_values=fill)
        lengths = [axis.length for axis in self.axes]
        windows = np.lib.stride_tricks.sliding_window_view(padded, lengths, tuple(range(2, x.ndim)))
        steps: list[slice] = [slice(0, (axis.out - 1) * axis.stride + 1, axis.stride) for axis in self.axes]
        taps: list[slice] = [slice(None, None, axis.dilation) for axis in self.axes]
        every: Index = (slice(None), slice(None), *steps, *taps)
        return windows[every]

    def scatter(self, columns: Array) -> Array:
        """Returns [N, C, *sizes]: each element is the sum of its occurrences in ``columns``, shaped as `view`."""
        padding = self._padding()
        padded_sizes = [n + before + after for n, (before, after) in zip(self.sizes, padding, strict=True)]
        padded = np.zeros([*columns.shape[:2], *padded_sizes], columns.dtype)
        for element in itertools.product(*(range(axis.kernel) for axis in self.axes)):
            here: Index = (..., *element)
            first = [k * axis.dilation for k, axis in zip(element, self.axes, strict=True)]
            there: Index = (
                ...,
                *(
                    slice(at, at + (axis.out - 1) * axis.stride + 1, axis.stride)
                    for at, axis in zip(first, self.axes, strict=True)
                ),
            )
            padded[there] += columns[here]
        inner: Index = (
            ...,
            *(slice(before, before + n) for n, (before, _) in zip(self.sizes, padding, strict=True)),
        )
        return padded[inner]

    def counts(self, *, include_pad: bool) -> Integers:
        """Returns the number of elements of each window in x, or in x and its declared padding: [*out]."""
        counts: Integers = np.ones([], np.int64)
        for n, k, s, d, begin, end, o in self.axes:
            low, high = (-begin, n + end) if include_pad else (0, n)
            positions = np.arange(o)[:, None] * s - begin + np.arange(k) * d
            counts = np.multiply.outer(counts, ((positions >= low) & (positions < high)).sum(axis=1))
        return counts

    def _padding(self) -> list[tuple[int, int]]:
        """Returns the padding that all windows need, which is more than declared if ceil_mode rounded up."""
        return [(axis.begin, axis.end + axis.excess) for axis in self.axes]


def slide(
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    auto_pad: str | None = None,
    ceil_mode: int | None = None,
) -> Windows:
    """Returns the windows for the attributes of Conv or a pool, as ONNX defines them; None if absent."""
    axes = window_axes(
        sizes,
        kernel,
        strides=strides,
        pads=pads,
        dilations=dilations,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
    )
    return Windows(tuple(axes))
