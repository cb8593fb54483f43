"""The logarithm of a sigmoid by Softplus: PyTorch's exporter writes Log(Sigmoid(x)), infinite below -18."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from bngrad.torch.onnx_ops import op

_MEAN, _SUM = 1, 2


def _one(like: Any) -> Any:  # noqa: ANN401 - of onnxscript's
    return op.CastLike(op.Constant(value_float=1.0), like)


def _softplus(x: Any) -> Any:  # noqa: ANN401
    """log(1 + exp(x)); of double as `training.loss.nodes` computes it."""
    if x.dtype != ir.DataType.DOUBLE:
        return op.Softplus(x)
    unit, r = _one(x), op.Relu(x)
    u = op.Exp(op.Sub(x, op.Add(r, r)))
    s = op.Add(unit, u)
    return op.Add(r, op.Add(op.Log(s), op.Div(op.Sub(u, op.Sub(s, unit)), s)))


def _negative(x: Any) -> Any:  # noqa: ANN401
    negative = op.Neg(x)
    negative.dtype = x.dtype
    return negative


def log_sigmoid(self: Any) -> Any:  # noqa: ANN401
    """aten.log_sigmoid -> -Softplus(-x)."""
    return op.Neg(_softplus(_negative(self)))


def binary_cross_entropy_with_logits(
    self: Any,  # noqa: ANN401
    target: Any,  # noqa: ANN401
    weight: Any = None,  # noqa: ANN401
    pos_weight: Any = None,  # noqa: ANN401
    reduction: int = _MEAN,
) -> Any:  # noqa: ANN401
    """aten.binary_cross_entropy_with_logits -> weight ((1 - t) x + (1 + (pos_weight - 1) t) Softplus(-x))."""
    unit = _one(self)
    loss = _softplus(_negative(self))
    if pos_weight is not None:
        loss = op.Mul(op.Add(op.Mul(op.Sub(pos_weight, unit), target), unit), loss)
    loss = op.Add(op.Mul(op.Sub(unit, target), self), loss)
    if weight is not None:
        loss = op.Mul(loss, weight)
    if reduction == _MEAN:
        return op.ReduceMean(loss, keepdims=0)
    return op.ReduceSum(loss, keepdims=0) if reduction == _SUM else loss
