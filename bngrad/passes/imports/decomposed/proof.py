"""The proof of a match: the primitives and their replacement compute the same numbers, in float64.

The data of one channel is plain, that of another has a mean of 1000, and that of a third a tiny variance. Where
the sizes of all reduced axes are symbols, a run with one element for each channel follows. So does a run
with data that is 0 where the graph compares a variance, or x - mean, with 0.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from bngrad.opset.reduction import ieee_warnings_off
from bngrad.passes.imports.decomposed.evaluate import Evaluator
from bngrad.passes.imports.decomposed.polynomial import atoms

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bngrad.passes.imports.decomposed.algebra import Over
    from bngrad.passes.imports.decomposed.forms import Forms
    from bngrad.passes.imports.decomposed.polynomial import Monomial

_TOLERANCE = 1e-6
_TOLERANCE_OF_DOUBLE = 1e-7
"""The largest difference of a replacement, relative to the largest number of a value.

Both run in float64. They differ by 1e-9 where the mean is 1000, and by more where a constant is rounded to
float32, as the epsilon of the ops is.
"""


def tolerance_of(value: ir.Value) -> float:
    """The largest difference of a replacement, relative to the largest number of a value."""
    return _TOLERANCE_OF_DOUBLE if value.dtype == ir.DataType.DOUBLE else _TOLERANCE


_SMALLEST = 1e-3
"""The lower bound of the largest number, for values such as a dX that is 0 except for rounding."""

_CHANNELS = 3
"""The most channels that are run, along each axis."""

_MOST_ELEMENTS = 1 << 18
"""The number of reduced elements beyond which one channel is run, without plain data."""

_MOST_OF_LEAF = 1 << 26
"""Elements of a value that are drawn, 512 MiB: a small file may declare any number of them."""

_SYMBOLIC = (5, 4, 3, 2)
"""Sizes for axes whose size is a symbol."""


class Proof:
    """Compares values with their replacements.

    Args:
        forms: The forms of the graph.
        x: The data of the batch norm.
        over: The axes that it reduces.
    """

    def __init__(self, forms: Forms, x: Monomial, over: Over) -> None:
        self._forms, self._over = forms, over
        leaves = (forms.algebra.leaf_of(atom) for atom, _ in x)
        self._data = {value for value in leaves if value is not None}
        self._positive = _variances(forms)
        sizes = {axis: forms.layouts.axes.size(axis) for axis in sorted(over)}
        unknown = dict.fromkeys(size or axis for axis, size in sizes.items() if not isinstance(size, int))
        self._symbols = {symbol: _SYMBOLIC[place % len(_SYMBOLIC)] for place, symbol in enumerate(unknown)}
        symbolic = bool(over) and not any(isinstance(size, int) for size in sizes.values())
        draws = ["mean", "variance"] if self._channel_size() < _CHANNELS else []
        if not draws or self._reduced() <= _MOST_ELEMENTS:
            draws.append("plain")
        if symbolic:
            draws.append("one element")
        if forms.compares_with_zero:
            draws.append("zero")
        self._evaluators = {draw: self._evaluator(index, draw) for index, draw in enumerate(draws)}

    def difference(self, old: ir.Value, new: ir.Value) -> float:
        """The largest difference of two values, relative to the largest number.

        Args:
            old: The value that the graph computes.
            new: The replacement, in the same layout.
        """
        worst = 0.0
        for draw, evaluator in self._evaluators.items():
            with ieee_warnings_off():
                a, b = np.broadcast_arrays(evaluator.run(old), evaluator.run(new))
                if draw == "zero":  # without epsilon, both may be 0 / 0
                    a, b = (np.where(np.isfinite(a) | np.isfinite(b), array, 0.0) for array in (a, b))
                largest = max(np.abs(a).max(initial=0.0), np.abs(b).max(initial=0.0), _SMALLEST)
                difference = float(np.abs(a - b).max(initial=0.0) / largest)
            if not np.isfinite(difference):
                return float("inf")
            worst = max(worst, difference)
        return worst

    def _channel_size(self) -> int:
        return min(_CHANNELS, self._kept_number())

    def _kept_number(self) -> int:
        axes = {axis for value in self._data for axis in self._forms.varies(value)} - self._over
        return max((self._size(axis, one_element=False) for axis in axes), default=1)

    def _size(self, axis: int, *, one_element: bool) -> int:
        size = self._forms.layouts.axes.size(axis)
        if (size or axis) in self._symbols:
            return 1 if one_element else self._symbols[size or axis]
        if axis in self._over and isinstance(size, int):
            return size
        most = 1 if self._reduced() > _MOST_ELEMENTS else _CHANNELS
        return min(size, most) if isinstance(size, int) else most

    def _reduced(self) -> int:
        sizes = (self._forms.layouts.axes.size(axis) for axis in self._over)
        return int(np.prod([size for size in sizes if isinstance(size, int)], dtype=np.int64))

    def _evaluator(self, index: int, draw: str) -> Evaluator:
        random = np.random.default_rng(index)

        def leaf(value: ir.Value, shape: tuple[int, ...]) -> NDArray[np.float64]:
            if math.prod(shape) > _MOST_OF_LEAF:
                raise ValueError(f"{value.name!r} has {math.prod(shape)} elements")
            array = random.standard_normal(shape)
            if value in self._positive:
                return np.abs(array) + 0.1
            return self._hard(value, array, draw) if value in self._data else array

        return Evaluator(self._forms, lambda axis: self._size(axis, one_element=draw == "one element"), leaf)

    def _hard(self, value: ir.Value, array: NDArray[np.float64], draw: str) -> NDArray[np.float64]:
        """Data whose channels have different means and variances."""
        layout = self._forms.layouts.of(value) or ()
        kept = [place for place, dimension in enumerate(layout) if dimension and not set(dimension) & self._over]
        shift, factor = {"mean": (1000.0, 1.0), "variance": (0.0, 1e-4), "zero": (0.0, 0.0)}.get(draw, (0.5, 1.0))
        array = array * factor + shift
        if kept and draw in ("plain", "one element") and array.shape[kept[0]] >= _CHANNELS:
            by_channel = np.moveaxis(array, kept[0], 0)
            by_channel[1] += 1000.0
            by_channel[2] *= 1e-4
        return array


def _variances(forms: Forms) -> set[ir.Value]:
    """The leaves under roots, which are positive."""
    values = set()
    for form, _ in forms.algebra.bases():
        values |= {value for atom in atoms(form) if (value := forms.algebra.leaf_of(atom)) is not None}
    return values
