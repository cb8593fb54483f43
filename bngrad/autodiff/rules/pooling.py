"""Pools, as ORT's own gradient ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

if TYPE_CHECKING:
    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients


def max_pool(back: Backward) -> Gradients:
    """MaxPoolGrad(dY, indices) -> dX; the forward node gets the output with its indices."""
    auto_pad, dilations = back.attribute("auto_pad", "NOTSET"), back.attribute("dilations", [])
    if auto_pad.startswith("SAME") and max(dilations, default=1) > 1:
        # ONNX Runtime pads for a kernel without dilations there, and makes another shape than ONNX says.
        back.refuse(f"it has auto_pad = {auto_pad} and dilations {list(dilations)}; expected pads as numbers")
    if auto_pad == "VALID" and back.attribute("ceil_mode", 0):
        back.refuse(
            "it has auto_pad = VALID and ceil_mode = 1, of which ONNX Runtime makes another shape than ONNX"
        )
    y, indices = back.y(0), back.y(1)
    indices.dtype, indices.shape = ir.DataType.INT64, y.shape
    return [back.op("MaxPoolGrad", back.dY, indices, **back.attributes())]


def average_pool(back: Backward) -> Gradients:
    """AveragePoolGrad(dY) -> dX."""
    return [back.op("AveragePoolGrad", back.dY, **back.attributes())]
