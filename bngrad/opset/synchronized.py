"""The ops of synchronized batch normalization: batch norms that are split at their sums, and what joins the sums.

X, dY and so on are a rank's part of the batch. The statistics are those of the whole batch, of all ranks::

    X -> Moments -> AllGather -> MergeMoments -> Apply -> Y
    dY -> GradSums -> AllGather -> GradApply -> dX

All is computed in double: sums of several ranks differ from those of one process in the last bits of a double.
The functions of AllGather (a dimension of 1 is added) and AllReduce (the input) are those of one rank. No model
carries them: ranks without the library would each train alone. See `functions` for the rules of a body.
"""

from __future__ import annotations

import onnx
from onnxscript import opset15 as op
from onnxscript import script
from onnxscript.values import Opset

from bngrad.opset.domain import DOMAIN, VERSION
from bngrad.opset.reduced_count import ReducedCount

DOUBLE = onnx.TensorProto.DOUBLE

_opset = Opset(DOMAIN, VERSION)


@script(_opset, default_opset=op)
def BatchNormalizationMoments(X, axes):
    """The moments of a rank's part of the batch.

    moments has the rows count, mean and M2 = sum (X - mean)^2 over axes, with a column for each channel: the C
    elements of X's shape without the axes, in row-major order. All are 0 if X has no elements.
    """
    x = op.Cast(X, to=DOUBLE)
    start = axes - axes
    first = op.Slice(x, start, start + op.Constant(value_ints=[1]), axes)
    shift = op.ReduceSum(first, axes, keepdims=0, noop_with_empty_axes=1)
    unit = op.Cast(op.Constant(value_float=1.0), to=DOUBLE)
    count = ReducedCount(x, axes)
    M = op.Max(count, unit)
    shifted = x - op.Unsqueeze(shift, axes)
    offset = op.ReduceSum(shifted, axes, keepdims=0, noop_with_empty_axes=1) / M
    centered = shifted - op.Unsqueeze(offset, axes)
    residual = op.ReduceSum(centered, axes, keepdims=0, noop_with_empty_axes=1) / M
    mean = shift + (offset + residual)
    squares = op.ReduceSum(centered * centered, axes, keepdims=0, noop_with_empty_axes=1)
    M2 = squares - count * (residual * residual)
    row = op.Constant(value_ints=[1, -1])
    means = op.Reshape(mean, row)
    counts = op.Expand(count, op.Shape(means))
    moments = op.Concat(counts, means, op.Reshape(M2, row), axis=0)
    return moments


@script(_opset, default_opset=op)
def BatchNormalizationMergeMoments(
    gathered_moments,
    running_mean,
    running_var,
    epsilon: float,
    momentum: float,
    unbiased_running_var: int,
):
    """The statistics of the whole batch, from the moments of all ranks.

    With n, m and M2 of rank r: batch_count = sum n; batch_mean = m_0 + sum n (m - m_0) / batch_count;
    var = sum (M2 + n (m - batch_mean)^2) / batch_count; batch_inv_std = 1 / sqrt(var + epsilon).
    Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.
    new_running_mean and new_running_var are those of BatchNormalizationTraining with M = batch_count. The native
    library adds the ranks in a fixed tree, so that the results depend only on their number and their parts.
    With batch_count = 0 the statistics are NaN.
    """
    zero = op.Constant(value_int=0)
    unit = op.Cast(op.Constant(value_float=1.0), to=DOUBLE)
    ranks = op.Constant(value_ints=[0])
    counts = op.Gather(gathered_moments, zero, axis=1)
    means = op.Gather(gathered_moments, op.Constant(value_int=1), axis=1)
    squares = op.Gather(gathered_moments, op.Constant(value_int=2), axis=1)
    total = op.ReduceSum(counts, ranks, keepdims=0)
    first = op.Gather(means, zero, axis=0)
    mean = first + op.ReduceSum(counts * (means - first), ranks, keepdims=0) / total
    # A rank without elements adds nothing, also where the square overflows.
    nothing = op.Cast(op.Constant(value_float=0.0), to=DOUBLE)
    centered = op.Where(counts > nothing, means - mean, nothing)
    var = op.ReduceSum(squares + counts * (centered * centered), ranks, keepdims=0) / total
    batch_count = op.ReduceSum(total, keepdims=0) / ReducedCount(total, ranks)

    shape = op.Shape(running_mean)
    batch_mean = op.Reshape(mean, shape, allowzero=1)
    batch_var = op.Reshape(var, shape, allowzero=1)
    batch_inv_std = op.Reciprocal(op.Sqrt(batch_var + op.Cast(op.Constant(value_float=epsilon), to=DOUBLE)))
    unbiased = op.Cast(op.Constant(value_int=unbiased_running_var), to=onnx.TensorProto.BOOL)
    bessel = op.Where(unbiased, batch_count / op.Max(batch_count - unit, unit), unit)
    keep = op.Cast(op.Constant(value_float=momentum), to=DOUBLE)
    next_mean = keep * op.Cast(running_mean, to=DOUBLE) + (unit - keep) * batch_mean
    next_var = keep * op.Cast(running_var, to=DOUBLE) + (unit - keep) * (batch_var * bessel)
    new_running_mean = op.CastLike(next_mean, running_mean)
    new_running_var = op.CastLike(next_var, running_mean)
    return new_running_mean, new_running_var, batch_mean, batch_inv_std, batch_count


@script(_opset, default_opset=op)
def BatchNormalizationApply(X, scale, bias, batch_mean, batch_inv_std, axes):
    """Y = (X - batch_mean) * batch_inv_std * scale + bias."""
    centered = op.Cast(X, to=DOUBLE) - op.Unsqueeze(batch_mean, axes)
    gain = op.Unsqueeze(op.Cast(scale, to=DOUBLE) * batch_inv_std, axes)
    Y = op.CastLike(centered * gain + op.Unsqueeze(op.Cast(bias, to=DOUBLE), axes), X)
    return Y


@script(_opset, default_opset=op)
def BatchNormalizationGradSums(dY, X, scale, batch_mean, batch_inv_std, axes):
    """The sums over a rank's part of the batch in the gradient of batch normalization.

    sums has the rows sum dY and sum dY * (X - batch_mean) over axes, with a column for each channel, as the
    moments have. dbias, which is the first, and dscale, the second times batch_inv_std, have the type and shape of
    scale: they are the rank's part of these gradients.
    """
    dy = op.Cast(dY, to=DOUBLE)
    centered = op.Cast(X, to=DOUBLE) - op.Unsqueeze(batch_mean, axes)
    sum_dy = op.ReduceSum(dy, axes, keepdims=0, noop_with_empty_axes=1)
    sum_dy_centered = op.ReduceSum(dy * centered, axes, keepdims=0, noop_with_empty_axes=1)
    row = op.Constant(value_ints=[1, -1])
    sums = op.Concat(op.Reshape(sum_dy, row), op.Reshape(sum_dy_centered, row), axis=0)
    # A sum over nothing is 0, also with the statistics of an empty batch, which are NaN.
    zero = op.Cast(op.Constant(value_float=0.0), to=DOUBLE)
    sum_dy_xhat = op.Where(ReducedCount(dy, axes) > zero, sum_dy_centered * batch_inv_std, zero)
    dscale = op.CastLike(sum_dy_xhat, scale)
    dbias = op.CastLike(sum_dy, scale)
    return sums, dscale, dbias


@script(_opset, default_opset=op)
def BatchNormalizationReluGradSums(dZ, Z, X, scale, batch_mean, batch_inv_std, axes):
    """BatchNormalizationGradSums of Z = relu(Y), with dY = dZ where Z > 0, else 0."""
    zero = op.Cast(op.Constant(value_float=0.0), to=DOUBLE)
    dY = op.CastLike(op.Where(op.Cast(Z, to=DOUBLE) > zero, op.Cast(dZ, to=DOUBLE), zero), X)
    sums, dscale, dbias = BatchNormalizationGradSums(dY, X, scale, batch_mean, batch_inv_std, axes)
    return sums, dscale, dbias


@script(_opset, default_opset=op)
def BatchNormalizationGradApply(dY, X, scale, batch_mean, batch_inv_std, gathered_sums, batch_count, axes):
    """The gradient with respect to X, from the sums of all ranks.

    With S0 and S1 the sums of gathered_sums over the ranks, dbias = S0, dscale = S1 * batch_inv_std and
    xhat = (X - batch_mean) * batch_inv_std:
    dX = scale * batch_inv_std * (dY - (dbias + xhat * dscale) / batch_count).
    """
    totals = op.ReduceSum(gathered_sums, op.Constant(value_ints=[0]), keepdims=0)
    shape = op.Shape(scale)
    dbias = op.Reshape(op.Gather(totals, op.Constant(value_int=0), axis=0), shape, allowzero=1)
    sum_dy_centered = op.Reshape(op.Gather(totals, op.Constant(value_int=1), axis=0), shape, allowzero=1)
    dscale = sum_dy_centered * batch_inv_std
    xhat = (op.Cast(X, to=DOUBLE) - op.Unsqueeze(batch_mean, axes)) * op.Unsqueeze(batch_inv_std, axes)
    through_statistics = (op.Unsqueeze(dbias, axes) + xhat * op.Unsqueeze(dscale, axes)) / batch_count
    gain = op.Unsqueeze(op.Cast(scale, to=DOUBLE) * batch_inv_std, axes)
    dX = op.CastLike(gain * (op.Cast(dY, to=DOUBLE) - through_statistics), X)
    return dX


@script(_opset, default_opset=op)
def BatchNormalizationReluGradApply(dZ, Z, X, scale, batch_mean, batch_inv_std, gathered_sums, batch_count, axes):
    """BatchNormalizationGradApply of Z = relu(Y), with dY = dZ where Z > 0, else 0."""
    zero = op.Cast(op.Constant(value_float=0.0), to=DOUBLE)
    dY = op.CastLike(op.Where(op.Cast(Z, to=DOUBLE) > zero, op.Cast(dZ, to=DOUBLE), zero), X)
    dX = BatchNormalizationGradApply(dY, X, scale, batch_mean, batch_inv_std, gathered_sums, batch_count, axes)
    return dX


@script(_opset, default_opset=op)
def AllGather(value, key: str):
    """The values of all ranks: gathered[r] is that of rank r. Models carry no function of this op.

    key names the exchange: it is unique in the model, and every rank must be at the same one.
    """
    gathered = op.Unsqueeze(value, op.Constant(value_ints=[0]))
    return gathered


@script(_opset, default_opset=op)
def AllReduce(partial, key: str):
    """The sum of partial over all ranks, in a fixed tree, in double and rounded once.

    key names the exchange: it is unique in the model, and every rank must be at the same one. Models carry no
    function of this op.
    """
    total = op.Identity(partial)
    return total


BATCH_NORMS = (
    BatchNormalizationMoments,
    BatchNormalizationMergeMoments,
    BatchNormalizationApply,
    BatchNormalizationGradSums,
    BatchNormalizationReluGradSums,
    BatchNormalizationGradApply,
    BatchNormalizationReluGradApply,
)
COLLECTIVES = (AllGather, AllReduce)
"""The ops through which ranks exchange values."""

CALLS = {
    "BatchNormalizationReluGradSums": ("BatchNormalizationGradSums",),
    "BatchNormalizationReluGradApply": ("BatchNormalizationGradApply",),
}
"""The functions that a function calls."""
