"""Batch norm and its relatives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from bngrad.autodiff.rule import gradient
from bngrad.graph.batch_norm_terms import cast_like, inverse_std, statistics_dtype
from bngrad.graph.batch_norms import PER_SAMPLE, refusal
from bngrad.graph.node_reader import dtype_of, like
from bngrad.graph.shapes import shape_of, zeros
from bngrad.opset.functions import DOMAIN
from bngrad.opset.op_attributes import ANY, FLAG, NORM
from bngrad.opset.ort_dialect import BATCH_NORM_GRAD, MICROSOFT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients

UNBIASED = "bngrad.unbiased_running_var"
"""The key in the ``meta`` of a BatchNormInternal whose running variance a later pass makes unbiased."""


@gradient(
    "BatchNormInternal",
    domain=MICROSOFT,
    inputs=(0, 1, 2, 3, 4),
    attributes={"epsilon": ANY, "momentum": ANY, "training_mode": (1,)},
)
def batch_norm_training(back: Backward) -> Gradients:
    """BatchNormalizationGrad of com.microsoft, from the statistics that BatchNormInternal saves."""

    def through_y(*inputs: ir.Value) -> Sequence[ir.Value]:
        domain, op_type = BATCH_NORM_GRAD
        epsilon = ir.AttrFloat32("epsilon", back.attribute("epsilon", 1e-5))
        return back.outputs_of(op_type, *inputs, outputs=["dX", "dscale", "dbias"], domain=domain, epsilon=epsilon)

    return _of_training(back, through_y)


@gradient(
    "BatchNormalizationTraining",
    domain=DOMAIN,
    inputs=(0, 1, 2, 3, 4),
    attributes={"epsilon": ANY, "momentum": ANY, "unbiased_running_var": FLAG},
)
def batch_norm_of_ours(back: Backward) -> Gradients:
    """BatchNormalizationGrad of bngrad, over the same axes and from the statistics that the forward op saves."""

    def through_y(*inputs: ir.Value) -> Sequence[ir.Value]:
        return back.bngrad("BatchNormalizationGrad", *inputs, axes=back.x(5), training_mode=1)

    return _of_training(back, through_y)


def _of_training(back: Backward, through_y: Callable[..., Sequence[ir.Value]]) -> Gradients:
    """Returns the gradients of a batch norm in training mode: through its Y and its new running statistics.

    A new statistic is momentum * old + (1 - momentum) * the batch's, over M elements each. The batch's statistics
    are the mean, and the biased variance or, times M / max(M - 1, 1), the unbiased one. Where the loss reads them,
    d_old = momentum * d_new and dX += (1 - momentum) / M * (d_mean + 2 (X - mean) d_var), where d_var has the same
    factor for the unbiased variance.

    Args:
        back: The node, whose outputs are (Y, running mean, running variance, saved mean, saved inv_std).
        through_y: A function that makes dX, dscale and dbias from dY, X, scale, saved mean and saved inv_std.
    """
    dY, d_mean, d_var, *of_saved = (*back.all_dY, None, None)
    if any(gradient is not None for gradient in of_saved):
        back.refuse("the loss depends on the statistics that it saves; expected only its Y and running statistics")
    scale, momentum = back.x(1), back.attribute("momentum", 0.9)
    dX = dscale = dbias = None
    if dY is not None:
        dX, dscale, dbias = through_y(dY, back.x(0), scale, back.y(3), back.y(4))
    elif back.needs(1) or back.needs(2):
        dscale = dbias = zeros(back, shape_of(back, scale), dtype_of(scale))
    if back.needs(0) and (d_mean is not None or d_var is not None):
        dX = added(back, dX, through_statistics(back, d_mean, d_var, 1 - momentum))
    old = [
        back.op("Mul", new, like(back, momentum, new)) if new is not None and back.needs(index) else None
        for index, new in ((3, d_mean), (4, d_var))
    ]
    return [dX, dscale, dbias, *old]


@gradient(
    "BatchNormalization",
    inputs=(0, 1, 2, 3, 4),
    versions=(15,),
    attributes={"epsilon": ANY, "momentum": ANY, "training_mode": (0,)},
)
def batch_norm_frozen(back: Backward) -> Gradients:
    """BatchNormalizationGrad of bngrad with training_mode = 0: mean and variance are inputs like any other.

    ::

        dmean = -scale inv_std sum dY             = -scale inv_std dbias
        dvar  = -scale inv_std^3 / 2 sum dY (X - mean) = -scale inv_std^2 / 2 dscale

    ORT's dialect has no op for it: its builder would differentiate a batch norm in training mode. Where the
    gradients with respect to the parameters are not needed, dX = dY (scale inv_std) takes one pass over the data,
    and no op of bngrad.
    """
    if back.attribute("training_mode", 0) != 0:
        back.refuse("it is in training mode; expected BatchNormInternal, which saves its statistics")
    _refuse_form(back, inputs=5)
    x, scale, variance = back.x(0), back.x(1), back.x(4)
    dtype = statistics_dtype(x)
    mean, inv_std = back.cast(back.x(3), dtype), inverse_std(back, variance, float32_epsilon(back), dtype)
    if not any(map(back.needs, range(1, 5))):
        factor = cast_like(back, back.op("Mul", back.cast(scale, dtype), inv_std), dtype, x)
        return [back.op("Mul", back.dY, _over_x(back, factor)), *[None] * 4]
    axes = back.axes([axis for axis in range(back.rank(x)) if axis != 1])
    moving = back.needs(3) or back.needs(4)
    # Sums that are multiplied further are rounded to 16 bits once, at the end.
    wide = back.cast(scale, dtype) if moving else scale
    dX, dscale, dbias = back.bngrad(
        "BatchNormalizationGrad", back.dY, x, wide, mean, inv_std, axes=axes, training_mode=0
    )
    if not moving:
        return [dX, dscale, dbias, None, None]
    slope = back.op("Neg", back.op("Mul", wide, inv_std))
    dmean = back.op("Mul", slope, dbias)
    dvar = back.op("Mul", back.op("Mul", slope, back.op("Mul", inv_std, like(back, 0.5, inv_std))), dscale)
    parameters = [(dscale, scale), (dbias, scale), (dmean, back.x(3)), (dvar, variance)]
    return [dX, *(cast_like(back, gradient, dtype, parameter) for gradient, parameter in parameters)]


@gradient("InstanceNormalization", inputs=(0, 1, 2), versions=(6, 22), attributes={"epsilon": ANY})
def instance_norm(back: Backward) -> Gradients:
    """A batch norm over only the spatial axes: each channel of each sample has its own statistics.

    dscale and dbias are summed over the samples.
    """
    _refuse_form(back, inputs=3)
    x, scale = back.x(0), back.x(1)
    dtype = statistics_dtype(x)
    axes = back.axes(list(range(2, back.rank(x))))
    statistics = back.bngrad("BatchNormalizationStatistics", x, axes=axes, epsilon=float32_epsilon(back))
    repeated = back.op("Expand", back.cast(scale, dtype), back.op("Shape", x, end=2))
    inputs = (back.dY, x, repeated, *statistics)
    dX, *parameters = _per_sample_gradients(back, *inputs, axes=axes)
    return [dX, *(_summed(back, value, [0], scale) for value in parameters)]


@gradient("GroupNormalization", inputs=(0, 1, 2), versions=(21,), attributes={"num_groups": ANY, **NORM})
def group_norm(back: Backward) -> Gradients:
    """A batch norm over a group of channels: each group of each sample has statistics, and dY scale replaces dY.

    dscale = sum dY xhat and dbias = sum dY, over all axes except the channels.
    """
    _refuse_form(back, inputs=3)
    x, scale, dY = back.x(0), back.x(1), back.dY
    dtype, rank = statistics_dtype(x), back.rank(x)
    others = [axis for axis in range(rank) if axis != 1]
    shape, by_group = back.op("Shape", x), _shape_by_group(back)
    grouped, axes = back.op("Reshape", x, by_group, allowzero=1), back.axes([2])
    grouped.type = x.type
    mean, inv_std = back.bngrad("BatchNormalizationStatistics", grouped, axes=axes, epsilon=float32_epsilon(back))
    dX = dscale = dbias = None
    if back.needs(0):
        over_x = back.op("Unsqueeze", scale, back.int64(list(range(1, rank - 1))))
        g = back.op("Reshape", back.op("Mul", dY, over_x), by_group, allowzero=1)
        ones = back.op("Expand", back.constant(1, dtype), back.op("Shape", mean))
        inputs = (g, grouped, ones, mean, inv_std)
        dX, *_ = _per_sample_gradients(back, *inputs, axes=axes)
        dX = back.op("Reshape", dX, shape, allowzero=1)
    if back.needs(1):
        centered = back.op("Sub", back.cast(grouped, dtype), back.op("Unsqueeze", mean, axes))
        xhat = back.op("Mul", centered, back.op("Unsqueeze", inv_std, axes))
        xhat = back.op("Reshape", xhat, shape, allowzero=1)
        dscale = _summed(back, back.op("Mul", back.cast(dY, dtype), xhat), others, scale)
    if back.needs(2):
        dbias = _summed(back, back.cast(dY, dtype), others, scale)
    return [dX, dscale, dbias]


def _per_sample_gradients(back: Backward, *inputs: ir.Value, axes: ir.Value) -> Sequence[ir.Value]:
    """Makes BatchNormalizationGrad over the axes of one sample."""
    outputs = back.bngrad("BatchNormalizationGrad", *inputs, axes=axes, training_mode=1)
    node = outputs[0].producer()
    assert node is not None, "it was just made"  # noqa: S101
    node.meta[PER_SAMPLE] = True
    return outputs


def through_statistics(back: Backward, d_mean: ir.Value | None, d_var: ir.Value | None, weight: float) -> ir.Value:
    """Returns the gradient of X through its mean and variance: weight / M (d_mean + 2 (X - mean) d_var).

    Args:
        back: A batch norm in training mode or a layer norm.
        d_mean: The gradient of the mean, or None.
        d_var: The gradient of the variance, or None; not both are None.
        weight: The weight of the batch's statistics in the statistics that d_mean and d_var belong to.
    """
    x, layer_norm = back.x(0), back.node.op_type == "LayerNormalization"
    dtype, mean = statistics_dtype(x), back.y(1 if layer_norm else 3)

    def spread(value: ir.Value) -> ir.Value:
        wide = back.cast(value, dtype)
        return wide if layer_norm else _over_x(back, wide)

    whole, reduced = (back.op("Cast", back.op("Size", value), to=int(dtype)) for value in (x, mean))
    share = back.op("Div", back.op("Mul", back.constant(weight, dtype), reduced), whole)
    total = None if d_mean is None else spread(d_mean)
    if d_var is None:
        total = back.op("Expand", total, back.op("Shape", x))
    else:
        centered = back.op("Sub", back.cast(x, dtype), spread(mean))
        factor = back.constant(2, dtype)
        if back.node.meta.get(UNBIASED) or back.attribute("unbiased_running_var", 0):
            # M / max(M - 1, 1), both times the number of statistics.
            factor = back.op(
                "Div", back.op("Mul", factor, whole), back.op("Max", back.op("Sub", whole, reduced), reduced)
            )
        total = added(back, total, back.op("Mul", centered, back.op("Mul", spread(d_var), factor)))
    return cast_like(back, back.op("Mul", total, share), dtype, x)


def _over_x(back: Backward, statistic: ir.Value) -> ir.Value:
    """Reshapes a statistic of a batch norm so that it broadcasts over X."""
    x = back.x(0)
    ours = back.node.domain == DOMAIN
    axes = back.x(5) if ours else back.int64(list(range(1, back.rank(x) - 1)))
    result = back.op("Unsqueeze", statistic, axes)
    result.type = statistic.type
    return result


def added(back: Backward, first: ir.Value | None, second: ir.Value) -> ir.Value:
    """Returns the sum of two gradients; the first may be None."""
    return second if first is None else back.op("Add", first, second)


def _shape_by_group(back: Backward) -> ir.Value:
    """Returns the shape [N, G, C / G S] for [N, C, S], without a -1, which is ambiguous for an empty batch."""
    x, groups = back.x(0), back.int64([back.attribute("num_groups", 1)])
    rest = back.op("Div", back.op("ReduceProd", back.op("Shape", x, start=1), keepdims=1), groups)
    return back.op("Concat", back.op("Shape", x, end=1), groups, rest, axis=0)


def _summed(back: Backward, value: ir.Value, axes: Sequence[int], parameter: ir.Value) -> ir.Value:
    """Sums a value in the type of statistics, and casts the sum to the type of a parameter."""
    total = back.op("ReduceSum", value, back.int64(list(axes)), keepdims=0)
    return cast_like(back, total, statistics_dtype(back.x(0)), parameter)


def _refuse_form(back: Backward, *, inputs: int) -> None:
    """Refuses types and ranks that the ops of bngrad do not support."""
    reason = refusal(back.node, inputs=inputs, data=(0,), minimum_rank=2, layout="[N, C, ...]")
    if reason:
        back.refuse(reason)


def float32_epsilon(back: Backward) -> float:
    """Returns the number that a float32 attribute holds, and not the decimal that it came from."""
    return float(np.float32(back.attribute("epsilon", 1e-5)))
