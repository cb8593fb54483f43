"""Det."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.autodiff.rule import gradient
from bngrad.graph.batch_norm_terms import cast_like, statistics_dtype
from bngrad.graph.linear_map import identity
from bngrad.graph.shapes import dimension_of

if TYPE_CHECKING:
    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients


@gradient("Det", versions=(11, 22))
def det(back: Backward) -> Gradients:
    """dX = dY times the cofactors of X: of element (i, j) the determinant of X with row i replaced by unit row j.

    This is right for singular matrices, which have no inverse. It takes the determinants of n^2 matrices for one
    of n rows.
    """
    x, dtype = back.x(0), statistics_dtype(back.x(0))
    unit = identity(back, dimension_of(back, x, -1))
    unit.dtype = ir.DataType.FLOAT
    # The axes are (..., i, j, row, column).
    row = back.op("Unsqueeze", back.cast(unit, ir.DataType.BOOL), back.int64([1, 3]))
    other = back.op("Unsqueeze", back.cast(unit, dtype), back.int64([0, 2]))
    whole = back.op("Unsqueeze", back.cast(x, dtype), back.int64([-4, -3]))
    cofactors = back.op("Det", back.op("Where", row, other, whole))
    cofactors.dtype = dtype
    dY = back.op("Unsqueeze", back.cast(back.dY, dtype), back.int64([-2, -1]))
    dY.dtype = dtype
    return [cast_like(back, back.times(dY, cofactors), dtype, x)]
