"""Constants filled with one number, and the exact number that a rounded constant stands for."""

from __future__ import annotations

from fractions import Fraction
from math import isfinite
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from bngrad.graph.node_reader import constant_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_ELEMENTS = 1 << 24
_FEW = 64

_HALF_ULP = {
    ir.DataType.DOUBLE: Fraction(1, 1 << 53),
    ir.DataType.FLOAT16: Fraction(1, 1 << 11),
    ir.DataType.BFLOAT16: Fraction(1, 1 << 8),
}
"""Half the distance of two numbers of a type, relative to them; 2^-24 for float."""


def uniform_number(value: ir.Value | None) -> float | None:
    """The number that a constant is filled with; None if its elements differ or the value is not constant."""
    try:
        array = constant_of(value)
    except (OSError, ValueError):  # its external data is not there
        return None
    if array is None or not 0 < array.size <= _MOST_ELEMENTS or not _is_numeric(array):
        return None
    first = array.flat[0]
    same = array.size == 1 or bool((array.flat[:_FEW] == first).all() and (array == first).all())
    return float(first) if same else None


def _is_numeric(array: NDArray[Any]) -> bool:
    return array.dtype.kind in "fiub" or array.dtype.name == "bfloat16"


def meant_number(number: float, dtype: ir.DataType | None) -> float:
    """The simplest fraction that rounds to a number: 1 / 49 for what float32 makes of 1 / 49.

    Args:
        number: A constant.
        dtype: Its type.
    """
    if not isfinite(number) or number == int(number):
        return number
    exact = Fraction(abs(number))
    margin = exact * _HALF_ULP.get(dtype or ir.DataType.FLOAT, Fraction(1, 1 << 24))
    simplest = float(_simplest(exact - margin, exact + margin))
    return simplest if number > 0 else -simplest


def _simplest(low: Fraction, high: Fraction) -> Fraction:
    """The fraction with the smallest denominator between two positive ones, by continued fractions."""
    whole = low.numerator // low.denominator
    if whole == low:
        return Fraction(whole)
    if whole + 1 <= high:
        return Fraction(whole + 1)
    return whole + 1 / _simplest(1 / (high - whole), 1 / (low - whole))
