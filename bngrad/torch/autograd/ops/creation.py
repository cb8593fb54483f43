"""Casts, Dropout, and the gradient stop."""

from __future__ import annotations

import onnx_ir as ir
import torch
from torch import Tensor

from bngrad.autodiff import stop_gradient
from bngrad.torch.autograd.table import UnsupportedFormError, op

_DTYPES = {
    ir.DataType.BOOL: torch.bool,
    ir.DataType.DOUBLE: torch.float64,
    ir.DataType.INT8: torch.int8,
    ir.DataType.INT16: torch.int16,
    ir.DataType.INT32: torch.int32,
    ir.DataType.INT64: torch.int64,
    ir.DataType.UINT8: torch.uint8,
}
"""The element types of a model in float64 that PyTorch computes with."""


@op("Cast", since=6)
def cast(x: Tensor, *, to: int, round_mode: str = "up", saturate: int = 1) -> Tensor:  # noqa: ARG001 - of float8
    """X in another type."""
    if ir.DataType(to) not in _DTYPES:
        raise UnsupportedFormError(f"it casts to {ir.DataType(to).name.lower()}, which PyTorch lacks")
    return x.to(_DTYPES[ir.DataType(to)])


@op("CastLike")
def cast_like(x: Tensor, like: Tensor, *, round_mode: str = "up", saturate: int = 1) -> Tensor:  # noqa: ARG001
    """X in the type of another tensor."""
    return x.to(like.dtype)


@op(stop_gradient.NAME, domain=stop_gradient.DOMAIN)
def stop(x: Tensor) -> Tensor:
    """X, which no gradient passes."""
    return x.detach()
