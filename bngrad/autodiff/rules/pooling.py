"""Pools, as ORT's own gradient ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

if TYPE_CHECKING:
    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients


def max_pool(back: Backward) -> Gradients:
    """MaxPoolGrad(dY, indices) -> dX; the forward node gets the output with its indices."""
    y, indices = back.y(0), back.y(1)
    indices.dtype, indices.shape = ir.DataType.INT64, y.shape
    return [back.op("MaxPoolGrad", back.dY, indices, **back.attributes())]


def average_pool(back: Backward) -> Gradients:
    """AveragePoolGrad(dY) -> dX."""
    return [back.op("AveragePoolGrad", back.dY, **back.attributes())]
