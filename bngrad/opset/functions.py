"""The opset ``bngrad``, version 1: each op is defined as an onnxscript function.

The functions are the executable specification. The model-local functions that are embedded in rewritten models (so
that they run without the native library), the schemas in `schemas` and their documentation are generated from
them. `reference` has the same formulas in NumPy.

Rules for a function body:

* Batch norms compute in `COMPUTE`: float for float, float16 and bfloat16 (a sum in 16 bits overflows or loses
  terms), double for double; those of `synchronized` in double. Inputs are cast to it and outputs are cast back,
  with one rounding.
* Use only ops with the same semantics in all ai.onnx opsets from 15 to the newest: when a function is embedded, it
  gets the opset of the model, because onnx's checker rejects a mixture.
* AdamUpdate computes in the type of its weight: an optimizer keeps its state in float or double.
* No number meets an array of unknown shape: ORT takes 50 times as long for arrays whose last dimension is 1, such
  as the weights of 1x1 convolutions. AdamUpdate reshapes them to vectors, which copies nothing.
* Take the reduction axes from the input, never from ``Size(Shape(X))``: ORT's shape inference would evaluate that
  to a constant with as many elements, and hang.
* No Size, and no number of data from a Shape: on a GPU they are copied to the CPU and back. `ReducedCount` is the
  number of elements of a reduction.
* Subtract means before multiplying: sum(dY * X) - mean * sum(dY) loses as many digits as |mean| / std has.
* A mean is a sum of differences: of X from the first element of its channel, which is exact for a channel that is
  constant, and then from the mean of these. What rounding leaves of their sum is a ``residual``. Its square is no
  part of the variance.
* Do not use ONNX's BatchNormalization with training_mode = 1: in ORT it overwrites its inputs.
"""

from __future__ import annotations

import functools
from typing import Any

import onnx
from onnxscript import opset15 as op
from onnxscript import script
from onnxscript.values import OnnxFunction, Opset

from bngrad.opset import domain, synchronized
from bngrad.opset.reduced_count import ReducedCount, inline_reduced_counts

DOMAIN = domain.DOMAIN
VERSION = domain.VERSION

MIN_OPSET = 15
"""The oldest ai.onnx opset with all ops that the functions use (CastLike is the newest of them)."""

NEWEST_OPSET = 28
"""The newest ai.onnx opset that the functions, the gradient rules and the lowerings were checked against."""

MIN_IR_VERSION = 8
"""The oldest ONNX IR version with model-local functions."""

COMPUTE = onnx.TensorProto.FLOAT
"""The type that the functions compute in; `function_proto` replaces it by double for models in double."""

_opset = Opset(DOMAIN, VERSION)


@script(_opset, default_opset=op)
def BatchNormalizationGrad(dY, X, scale, mean, inv_std, axes, training_mode: int):
    """The gradients of batch normalization, Y = scale * xhat + bias with xhat = (X - mean) * inv_std.

    dbias = sum dY and dscale = sum dY * xhat, over axes, M elements each.
    With training_mode = 1, mean and inv_std are functions of X, and
    dX = scale * inv_std * (dY - (dbias + xhat * dscale) / M).
    With training_mode = 0 they are constants (frozen statistics), and dX = scale * inv_std * dY.
    """
    dy = op.Cast(dY, to=COMPUTE)
    inv_std_c = op.Cast(inv_std, to=COMPUTE)
    unit = op.Cast(op.Constant(value_float=1.0), to=COMPUTE)
    count = ReducedCount(dy, axes)
    M = op.Max(count, unit)
    centered_x = op.Cast(X, to=COMPUTE) - op.Unsqueeze(op.Cast(mean, to=COMPUTE), axes)
    sum_dy = op.ReduceSum(dy, axes, keepdims=0, noop_with_empty_axes=1)
    about = sum_dy / M
    zero = op.Cast(op.Constant(value_float=0.0), to=COMPUTE)
    # Where the mean is infinite, the sums are those of dY itself.
    mean_dy = op.Where(op.Equal(about - about, zero), about, zero)
    centered_dy = dy - op.Unsqueeze(mean_dy, axes)
    sum_x = op.ReduceSum(centered_x, axes, keepdims=0, noop_with_empty_axes=1)
    sum_dy_x = op.ReduceSum(centered_dy * centered_x, axes, keepdims=0, noop_with_empty_axes=1) + mean_dy * sum_x
    # A sum over nothing is 0, also with the statistics of an empty batch, which are NaN.
    sum_dy_xhat = op.Where(count > zero, sum_dy_x * inv_std_c, zero)
    of_xhat = op.Unsqueeze(sum_dy_xhat / M * inv_std_c, axes)
    training = op.Cast(op.Constant(value_int=training_mode), to=onnx.TensorProto.BOOL)
    # Where, not a product with 0: infinite sums must not affect a frozen dX.
    through_variance = centered_x * of_xhat
    of_dy = op.Where(training, dy - op.Unsqueeze(about, axes) - through_variance, dy)
    gain = op.Unsqueeze(op.Cast(scale, to=COMPUTE) * inv_std_c, axes)
    dX = op.CastLike(gain * of_dy, X)
    dscale = op.CastLike(sum_dy_xhat, scale)
    dbias = op.CastLike(sum_dy, scale)
    return dX, dscale, dbias


@script(_opset, default_opset=op)
def BatchNormalizationReluGrad(dZ, Z, X, scale, mean, inv_std, axes, training_mode: int):
    """The gradients of Z = relu(Y), where Y is the batch normalization of X.

    They are those of BatchNormalizationGrad with dY = dZ where Z > 0, else 0.
    """
    zero = op.Cast(op.Constant(value_float=0.0), to=COMPUTE)
    dY = op.CastLike(op.Where(op.Cast(Z, to=COMPUTE) > zero, op.Cast(dZ, to=COMPUTE), zero), X)
    dX, dscale, dbias = BatchNormalizationGrad(dY, X, scale, mean, inv_std, axes, training_mode=training_mode)
    return dX, dscale, dbias


@script(_opset, default_opset=op)
def BatchNormalizationGradGrad(
    ddX,
    ddscale,
    ddbias,
    dY,
    X,
    scale,
    mean,
    inv_std,
    axes,
    training_mode: int,
):
    """The gradients of BatchNormalizationGrad, given the loss's gradients with respect to dX, dscale and dbias.

    With mean(t) over axes and P(t) = t - mean(t) - xhat * mean(t * xhat), for training_mode = 1:
    d_dY = scale * inv_std * P(ddX) + ddscale * xhat + ddbias;
    d_X = ddscale * inv_std * P(dY)
    - scale * inv_std^2 * (xhat * mean(ddX * P(dY)) + mean(dY * xhat) * P(ddX) + mean(ddX * xhat) * P(dY));
    d_scale = inv_std * sum(ddX * P(dY)).
    For training_mode = 0: d_dY = scale * inv_std * ddX + ddscale * xhat + ddbias; d_X = ddscale * inv_std * dY;
    d_scale = inv_std * sum(ddX * dY).
    """
    dy = op.Cast(dY, to=COMPUTE)
    ddx = op.Cast(ddX, to=COMPUTE)
    inv_std_c = op.Cast(inv_std, to=COMPUTE)
    inv_std_x = op.Unsqueeze(inv_std_c, axes)
    scale_x = op.Unsqueeze(op.Cast(scale, to=COMPUTE), axes)
    ddscale_x = op.Unsqueeze(op.Cast(ddscale, to=COMPUTE), axes)
    ddbias_x = op.Unsqueeze(op.Cast(ddbias, to=COMPUTE), axes)
    xhat = (op.Cast(X, to=COMPUTE) - op.Unsqueeze(op.Cast(mean, to=COMPUTE), axes)) * inv_std_x
    unit = op.Cast(op.Constant(value_float=1.0), to=COMPUTE)
    count = ReducedCount(dy, axes)
    M = op.Max(count, unit)
    training = op.Cast(op.Constant(value_int=training_mode), to=onnx.TensorProto.BOOL)

    mean_xhat = op.ReduceSum(xhat, axes, keepdims=0, noop_with_empty_axes=1) / M
    mean_dy = op.ReduceSum(dy, axes, keepdims=0, noop_with_empty_axes=1) / M
    centered_dy = dy - op.Unsqueeze(mean_dy, axes)
    residual_dy = op.ReduceSum(centered_dy, axes, keepdims=0, noop_with_empty_axes=1) / M
    mean_product = op.ReduceSum(centered_dy * xhat, axes, keepdims=0, noop_with_empty_axes=1) / M
    mean_dy_xhat = op.Unsqueeze(mean_product + mean_dy * mean_xhat, axes)
    mean_ddx = op.ReduceSum(ddx, axes, keepdims=0, noop_with_empty_axes=1) / M
    centered_ddx = ddx - op.Unsqueeze(mean_ddx, axes)
    residual_ddx = op.ReduceSum(centered_ddx, axes, keepdims=0, noop_with_empty_axes=1) / M
    mean_dd_product = op.ReduceSum(centered_ddx * xhat, axes, keepdims=0, noop_with_empty_axes=1) / M
    mean_ddx_xhat = op.Unsqueeze(mean_dd_product + mean_ddx * mean_xhat, axes)
    P_dy = op.Where(training, centered_dy - op.Unsqueeze(residual_dy, axes) - xhat * mean_dy_xhat, dy)
    P_ddx = op.Where(training, centered_ddx - op.Unsqueeze(residual_ddx, axes) - xhat * mean_ddx_xhat, ddx)
    sum_P_dy = op.ReduceSum(P_dy, axes, keepdims=0, noop_with_empty_axes=1)
    sum_centered = op.ReduceSum(centered_ddx * P_dy, axes, keepdims=0, noop_with_empty_axes=1)
    sum_ddx_P_dy = sum_centered + mean_ddx * sum_P_dy

    d_dY = op.CastLike(scale_x * inv_std_x * P_ddx + ddscale_x * xhat + ddbias_x, X)
    through_dx = xhat * op.Unsqueeze(sum_ddx_P_dy / M, axes) + mean_dy_xhat * P_ddx + mean_ddx_xhat * P_dy
    through_dscale = ddscale_x * inv_std_x * P_dy
    of_x = op.Where(training, through_dscale - scale_x * inv_std_x * inv_std_x * through_dx, through_dscale)
    d_X = op.CastLike(of_x, X)
    zero = op.Cast(op.Constant(value_float=0.0), to=COMPUTE)
    d_scale = op.CastLike(op.Where(count > zero, inv_std_c * sum_ddx_P_dy, zero), scale)
    return d_dY, d_X, d_scale


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
    """Batch normalization with the statistics of the batch, which it also returns for the gradient.

    saved_mean and var are the mean and the biased variance of X over axes, M elements each;
    saved_inv_std = 1 / sqrt(var + epsilon); Y = (X - saved_mean) * saved_inv_std * scale + bias.
    new_running_mean = momentum * running_mean + (1 - momentum) * saved_mean, and the same for the variance,
    which is multiplied by M / max(M - 1, 1) if unbiased_running_var is 1 (MIOpen, TensorFlow, PyTorch) and
    not if it is 0 (ONNX, nGraph). With M = 0 the statistics are NaN.
    """
    x = op.Cast(X, to=COMPUTE)
    unit = op.Cast(op.Constant(value_float=1.0), to=COMPUTE)
    start = axes - axes
    first = op.Slice(x, start, start + op.Constant(value_ints=[1]), axes)
    shift = op.ReduceSum(first, axes, keepdims=0, noop_with_empty_axes=1)
    shifted = x - op.Unsqueeze(shift, axes)
    M = ReducedCount(x, axes)
    offset = op.ReduceSum(shifted, axes, keepdims=0, noop_with_empty_axes=1) / M
    centered = shifted - op.Unsqueeze(offset, axes)
    residual = op.ReduceSum(centered, axes, keepdims=0, noop_with_empty_axes=1) / M
    mean = shift + (offset + residual)
    mean_square = op.ReduceSum(centered * centered, axes, keepdims=0, noop_with_empty_axes=1) / M
    var = mean_square - residual * residual
    inv_std = op.Reciprocal(op.Sqrt(var + op.Cast(op.Constant(value_float=epsilon), to=COMPUTE)))
    gain = op.Cast(scale, to=COMPUTE) * inv_std
    offset_of_y = op.Cast(bias, to=COMPUTE) - residual * gain
    Y = op.CastLike(centered * op.Unsqueeze(gain, axes) + op.Unsqueeze(offset_of_y, axes), X)

    unbiased = op.Cast(op.Constant(value_int=unbiased_running_var), to=onnx.TensorProto.BOOL)
    bessel = op.Where(unbiased, M / op.Max(M - unit, unit), unit)
    keep = op.Cast(op.Constant(value_float=momentum), to=COMPUTE)
    next_mean = keep * op.Cast(running_mean, to=COMPUTE) + (unit - keep) * mean
    next_var = keep * op.Cast(running_var, to=COMPUTE) + (unit - keep) * (var * bessel)
    new_running_mean = op.CastLike(next_mean, running_mean)
    new_running_var = op.CastLike(next_var, running_mean)
    saved_mean = op.CastLike(mean, running_mean)
    saved_inv_std = op.CastLike(inv_std, running_mean)
    return Y, new_running_mean, new_running_var, saved_mean, saved_inv_std


@script(_opset, default_opset=op)
def BatchNormalizationStatistics(X, axes, epsilon: float):
    """The statistics of the batch, for gradients of frameworks that do not save them.

    mean and var are the mean and the biased variance of X over axes; inv_std = 1 / sqrt(var + epsilon). Both
    outputs are double if X is double, else float. They are NaN for an empty reduction.
    """
    x = op.Cast(X, to=COMPUTE)
    start = axes - axes
    first = op.Slice(x, start, start + op.Constant(value_ints=[1]), axes)
    shift = op.ReduceSum(first, axes, keepdims=0, noop_with_empty_axes=1)
    shifted = x - op.Unsqueeze(shift, axes)
    M = ReducedCount(x, axes)
    offset = op.ReduceSum(shifted, axes, keepdims=0, noop_with_empty_axes=1) / M
    centered = shifted - op.Unsqueeze(offset, axes)
    residual = op.ReduceSum(centered, axes, keepdims=0, noop_with_empty_axes=1) / M
    mean = shift + (offset + residual)
    mean_square = op.ReduceSum(centered * centered, axes, keepdims=0, noop_with_empty_axes=1) / M
    var = mean_square - residual * residual
    inv_std = op.Reciprocal(op.Sqrt(var + op.Cast(op.Constant(value_float=epsilon), to=COMPUTE)))
    return mean, inv_std


@script(_opset, default_opset=op)
def AdamUpdate(weight, gradient, exp_avg, exp_avg_sq, coefficients):
    """A step of Adam or AdamW, for each element of a weight.

    coefficients are gradient_scale, l2_penalty, weight_factor, 1 - beta1, beta2, 1 - beta2, step_size,
    sqrt_bias_correction2 and epsilon, rounded to the type of weight, in which all is computed.
    g = gradient * gradient_scale + l2_penalty * weight;
    new_exp_avg = exp_avg + (1 - beta1) * (g - exp_avg);
    new_exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * g * g;
    new_weight = weight * weight_factor
    - step_size * new_exp_avg / (sqrt(new_exp_avg_sq) / sqrt_bias_correction2 + epsilon).
    Adam with weight decay d has l2_penalty = d and weight_factor = 1; AdamW has 0 and 1 - learning_rate * d.
    """
    c = op.CastLike(coefficients, weight)
    gradient_scale = op.Gather(c, op.Constant(value_int=0))
    l2_penalty = op.Gather(c, op.Constant(value_int=1))
    weight_factor = op.Gather(c, op.Constant(value_int=2))
    one_minus_beta1 = op.Gather(c, op.Constant(value_int=3))
    beta2 = op.Gather(c, op.Constant(value_int=4))
    one_minus_beta2 = op.Gather(c, op.Constant(value_int=5))
    step_size = op.Gather(c, op.Constant(value_int=6))
    sqrt_bias_correction2 = op.Gather(c, op.Constant(value_int=7))
    epsilon = op.Gather(c, op.Constant(value_int=8))
    vector = op.Constant(value_ints=[-1])
    shape = op.Shape(weight)
    w = op.Reshape(weight, vector)
    m = op.Reshape(exp_avg, vector)
    g = op.Reshape(gradient, vector) * gradient_scale + l2_penalty * w
    kept = op.Reshape(beta2 * op.Reshape(exp_avg_sq, vector), shape, allowzero=1)
    new_exp_avg = exp_avg + op.Reshape(one_minus_beta1 * (g - m), shape, allowzero=1)
    new_exp_avg_sq = kept + op.Reshape(one_minus_beta2 * g * g, shape, allowzero=1)
    deviation = op.Reshape(op.Sqrt(new_exp_avg_sq), vector) / sqrt_bias_correction2 + epsilon
    step = step_size * op.Reshape(new_exp_avg, vector) / deviation
    shrunk = op.Reshape(w * weight_factor, shape, allowzero=1)
    new_weight = shrunk - op.Reshape(step, shape, allowzero=1)
    return new_weight, new_exp_avg, new_exp_avg_sq


FUNCTIONS: dict[str, OnnxFunction[..., Any]] = {
    function.name: function
    for function in (
        BatchNormalizationGrad,
        BatchNormalizationReluGrad,
        BatchNormalizationGradGrad,
        BatchNormalizationTraining,
        BatchNormalizationStatistics,
        *synchronized.BATCH_NORMS,
        *synchronized.COLLECTIVES,
        AdamUpdate,
    )
}
"""Every op of the domain, by name."""

CALLS = {"BatchNormalizationReluGrad": ("BatchNormalizationGrad",), **synchronized.CALLS}
"""The functions that a function calls; they have to be embedded too."""


def function_proto(name: str, opset_version: int, *, double: bool = False) -> onnx.FunctionProto:
    """Returns an op as a model-local function.

    Args:
        name: A key of `FUNCTIONS`.
        opset_version: The ai.onnx opset of the model that it will be embedded in, `MIN_OPSET` or newer.
        double: Whether to compute in double; required for data in double.
    """
    proto = onnx.FunctionProto()
    proto.CopyFrom(_function_proto(FUNCTIONS[name], opset_version, double))
    return proto


@functools.cache
def _function_proto(function: OnnxFunction[..., Any], opset_version: int, double: bool) -> onnx.FunctionProto:
    proto = inline_reduced_counts(function.to_function_proto())
    for opset_import in proto.opset_import:
        if opset_import.domain == "":
            opset_import.version = opset_version
    if double:
        for attribute in (a for node in proto.node if node.op_type == "Cast" for a in node.attribute):
            if attribute.name == "to" and attribute.i == COMPUTE:
                attribute.i = onnx.TensorProto.DOUBLE
    return proto
