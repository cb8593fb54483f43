"""The op set ``bngrad``, version 1: each op written once, as an onnxscript function.

The functions are the executable specification. From them come the ONNX FunctionProto that a rewritten model
carries (so that it runs where no library is registered), the schemas in `schemas.py`, and the documentation;
``reference.py`` has the same formulas in NumPy.

Rules for a body:

* Only ops that mean the same at every ai.onnx opset from 15 to the newest, for the model's own opset is
  stamped on the function when it is embedded (onnx's checker refuses a mixture).
* Reduction axes come from the input, never from ``Size(Shape(X))``: ORT's shape inference would evaluate such
  an expression into a constant of that many elements, and hang.
* Means are subtracted before anything is multiplied: sum(dY * X) - mean * sum(dY) loses every digit that
  |mean| / std has.
* No op of ORT's that is unsafe in training: BatchNormalization with training_mode = 1 overwrites its feeds.
"""

from __future__ import annotations

from typing import Any

import onnx
from onnxscript import opset15 as op
from onnxscript import script
from onnxscript.values import OnnxFunction, Opset

DOMAIN = "bngrad"
VERSION = 1

MIN_OPSET = 15
"""The oldest ai.onnx opset that has every op of the bodies (CastLike is the newest of them)."""

MIN_IR_VERSION = 8
"""The oldest ONNX IR version that has model-local functions."""

_opset = Opset(DOMAIN, VERSION)


@script(_opset, default_opset=op)
def BatchNormalizationGrad(dY, X, scale, mean, inv_std, axes, training_mode: int):
    """The gradient of batch normalization, Y = scale * xhat + bias with xhat = (X - mean) * inv_std.

    dbias = sum dY and dscale = sum dY * xhat, over axes, M elements each.
    With training_mode = 1, mean and inv_std are functions of X, and
    dX = scale * inv_std * (dY - (dbias + xhat * dscale) / M).
    With training_mode = 0 they are constants (frozen statistics), and dX = scale * inv_std * dY.
    """
    inv_std_x = op.Unsqueeze(inv_std, axes)
    xhat = (X - op.Unsqueeze(mean, axes)) * inv_std_x
    dbias = op.ReduceSum(dY, axes, keepdims=0, noop_with_empty_axes=1)
    dscale = op.ReduceSum(dY * xhat, axes, keepdims=0, noop_with_empty_axes=1)
    M = op.CastLike(op.Size(X), X) / op.CastLike(op.Size(scale), X)
    through_statistics = (op.Unsqueeze(dbias, axes) + xhat * op.Unsqueeze(dscale, axes)) / M
    training = op.Cast(op.Constant(value_int=training_mode), to=onnx.TensorProto.BOOL)
    # Where, not a product with 0: a frozen dX must not see an infinity of the sums.
    dX = op.Unsqueeze(scale, axes) * inv_std_x * op.Where(training, dY - through_statistics, dY)
    return dX, dscale, dbias


@script(_opset, default_opset=op)
def BatchNormalizationTraining(
    X,
    scale,
    bias,
    running_mean,
    running_var,
    axes,
    epsilon: float,
    momentum: float,
    unbiased_running_var: int,
):
    """Batch normalization with the batch's own statistics, which it also saves for the gradient.

    saved_mean and var are the mean and the biased variance of X over axes, M elements each;
    saved_inv_std = 1 / sqrt(var + epsilon); Y = (X - saved_mean) * saved_inv_std * scale + bias.
    new_running_mean = momentum * running_mean + (1 - momentum) * saved_mean, and the same for the variance,
    which is multiplied by M / max(M - 1, 1) if unbiased_running_var is 1 (MIOpen, TensorFlow, PyTorch) and
    not if it is 0 (ONNX, nGraph). With M = 0 the statistics are NaN.
    """
    one = op.CastLike(op.Constant(value_float=1.0), X)
    M = op.CastLike(op.Size(X), X) / op.CastLike(op.Size(scale), X)
    saved_mean = op.ReduceSum(X, axes, keepdims=0, noop_with_empty_axes=1) / M
    centered = X - op.Unsqueeze(saved_mean, axes)
    var = op.ReduceSum(centered * centered, axes, keepdims=0, noop_with_empty_axes=1) / M
    saved_inv_std = op.Reciprocal(op.Sqrt(var + op.CastLike(op.Constant(value_float=epsilon), X)))
    Y = centered * op.Unsqueeze(saved_inv_std, axes) * op.Unsqueeze(scale, axes) + op.Unsqueeze(bias, axes)

    unbiased = op.Cast(op.Constant(value_int=unbiased_running_var), to=onnx.TensorProto.BOOL)
    bessel = op.Where(unbiased, M / op.Max(M - one, one), one)
    keep = op.CastLike(op.Constant(value_float=momentum), X)
    new_running_mean = keep * running_mean + (one - keep) * saved_mean
    new_running_var = keep * running_var + (one - keep) * (var * bessel)
    return Y, new_running_mean, new_running_var, saved_mean, saved_inv_std


@script(_opset, default_opset=op)
def BatchNormalizationStatistics(X, axes, epsilon: float):
    """The statistics that a gradient needs, for a system that did not save them.

    mean and var are the mean and the biased variance of X over axes; inv_std = 1 / sqrt(var + epsilon).
    With no element to reduce they are NaN.
    """
    total = op.ReduceSum(X, axes, keepdims=0, noop_with_empty_axes=1)
    M = op.CastLike(op.Size(X), X) / op.CastLike(op.Size(total), X)
    mean = total / M
    centered = X - op.Unsqueeze(mean, axes)
    var = op.ReduceSum(centered * centered, axes, keepdims=0, noop_with_empty_axes=1) / M
    inv_std = op.Reciprocal(op.Sqrt(var + op.CastLike(op.Constant(value_float=epsilon), X)))
    return mean, inv_std


FUNCTIONS: dict[str, OnnxFunction[..., Any]] = {
    function.name: function
    for function in (BatchNormalizationGrad, BatchNormalizationTraining, BatchNormalizationStatistics)
}
"""Every op of the domain, by name."""


def function_proto(name: str, opset_version: int) -> onnx.FunctionProto:
    """Returns an op as a model-local function.

    Args:
        name: A key of `FUNCTIONS`.
        opset_version: The ai.onnx opset of the model that will hold it, `MIN_OPSET` or newer.
    """
    proto = FUNCTIONS[name].to_function_proto()
    (opset_import,) = proto.opset_import
    opset_import.version = opset_version
    return proto
