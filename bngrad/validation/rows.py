"""Rows of comparisons with an error bound for each element."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bngrad.validation.report import Row, absolute_difference, measures

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


def named_row(subject: str, tensor: str, kind: str, implementation: str, against: str, note: str = "") -> Row:
    """Returns the row of a comparison that failed for want of a value, with the reason as a note."""
    infinite = float(np.inf)
    return Row(
        subject, tensor, kind, implementation, against, infinite, infinite, infinite, passed=False, note=note
    )


def compared(row: Row, got: Array, want: Array, allowed: Array) -> Row:
    """Returns a row of `named_row` with its comparison: the largest ratio of an element's error to its bound."""
    if got.shape != want.shape:
        return replace(row, note=f"shape {list(got.shape)}; expected {list(want.shape)}")
    difference = absolute_difference(got, want)
    max_abs, relative = measures(difference, want)
    # Results below the smallest normal number may be flushed to zero, except in float16.
    half = got.dtype == np.float16
    floor = float(np.finfo(np.float16).smallest_subnormal if half else np.finfo(np.float32).tiny)
    measure = float(np.max(difference / (np.nan_to_num(allowed) + floor), initial=0.0))
    return replace(row, max_abs=max_abs, relative_l2=relative, measure=measure, passed=measure <= 1.0)
