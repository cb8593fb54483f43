"""PyTorch's scalars, as ONNX. `torch.onnx.export` rounds those of float64 to float32."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from bngrad.torch.onnx_ops import op


def scalar_tensor(s: Any, dtype: int = ir.DataType.FLOAT, **_: Any) -> Any:  # noqa: ANN401 - a number, or of onnxscript's
    """aten.scalar_tensor -> a constant of its own type."""
    if isinstance(s, bool | int | float):
        return op.Constant(value=ir.tensor(s, dtype=ir.DataType(dtype if dtype > 0 else ir.DataType.FLOAT)))
    return op.Cast(s, to=dtype if dtype > 0 else ir.DataType.FLOAT)
