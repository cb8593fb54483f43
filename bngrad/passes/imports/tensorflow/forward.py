"""FusedBatchNorm, V2 and V3 in training -> BatchNormalizationTraining.

With mu and var the mean and the biased variance of the batch, M elements a channel, a = exponential_avg_factor::

    batch_mean      = (1 - a) * mean + a * mu                               reserve_space_1 = mu
    batch_variance  = (1 - a) * variance + a * var * M / max(M - 1, 1)      reserve_space_2 = var

If a is 1, mean and variance are not read, and may be empty. reserve_space_3 is empty: only cuDNN writes and reads
it.

BatchNormalizationTraining saves inv_std, not var. A gradient wants just that, and is handed it. Anything else
that takes reserve_space_2 gets var to the last digit, not 1 / inv_std^2 - epsilon, which has none left where var
is much smaller than epsilon: the op then keeps nothing of the old variance, so that its new one is var, and the
averages are taken outside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from bngrad.graph.batch_norm_terms import average, is_momentum, statistics_dtype
from bngrad.passes.imports.tensorflow.layout import Layout
from bngrad.passes.imports.tensorflow.lost_reserves import GRADIENTS
from bngrad.passes.imports.tensorflow.node import averaging_factor, epsilon, is_used, read_inputs
from bngrad.passes.replace import Emitter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bngrad.passes.base import Context

Y, BATCH_MEAN, BATCH_VARIANCE, SAVED_MEAN, SAVED_VARIANCE, RESERVE_3 = range(6)
"""The outputs. A gradient takes the last three as its inputs 3 to 5."""


def rewrite_training(node: ir.Node, context: Context) -> None:
    """Rewrites a forward node in training that was not refused."""
    emit = Emitter(node, context)
    x, scale, offset, mean, variance = read_inputs(node)
    layout = Layout(node, emit)
    factor, dtype = averaging_factor(node), _statistics_dtype(node)
    gradients = _uses_in_gradients(node)
    saved_variance = node.outputs[SAVED_VARIANCE] if len(node.outputs) > SAVED_VARIANCE else None
    exact = saved_variance is not None and is_used(saved_variance, but_by=gradients)
    exact = exact or not is_momentum(factor, dtype)
    # Zeros, not 0 * mean: what is not read may be empty, or NaN.
    unread = _zeros_like(emit, scale, dtype) if exact or factor == 1.0 else None
    y, new_mean, new_variance, saved_mean, saved_inv_std = emit.bngrad(
        "BatchNormalizationTraining",
        layout.enter(x),
        scale,
        offset,
        unread or mean,
        unread or variance,
        axes=layout.axes,
        epsilon=epsilon(node),
        momentum=0.0 if exact else 1.0 - factor,
        unbiased_running_var=int(not exact),
    )
    for statistic in (new_mean, new_variance, saved_mean, saved_inv_std):
        statistic.dtype, statistic.shape = dtype, scale.shape
    for gradient, index in gradients:
        gradient.replace_input_with(index, saved_inv_std)
    outputs = {Y: layout.leave(y), SAVED_MEAN: saved_mean}
    if exact:
        compute = statistics_dtype(x)
        unbiased = _unbiased(emit, new_variance, _reduced_count(emit, x, scale, compute), compute)
        outputs[BATCH_MEAN] = _averaged(emit, mean, saved_mean, factor, compute)
        outputs[BATCH_VARIANCE] = _averaged(emit, variance, unbiased, factor, compute)
        outputs[SAVED_VARIANCE] = new_variance
    else:
        outputs |= {BATCH_MEAN: new_mean, BATCH_VARIANCE: new_variance}
    replace_used(emit, node, outputs)


def replace_used(emit: Emitter, node: ir.Node, outputs: Mapping[int, ir.Value]) -> None:
    """Takes a forward node out.

    Args:
        emit: The node's.
        node: The node.
        outputs: What takes the place of its outputs, if they are used; reserve_space_3 becomes empty.
    """
    for user, index in tuple(node.outputs[RESERVE_3].uses()) if len(node.outputs) > RESERVE_3 else ():
        if user.op_type in GRADIENTS:
            user.replace_input_with(index, None)
    used = [index for index, value in enumerate(node.outputs) if is_used(value)]
    given = {index: outputs[index] for index in used if index != RESERVE_3}
    if RESERVE_3 in used:
        given[RESERVE_3] = emit.constant([], ir.DataType.FLOAT)
    emit.replace(given)


def _uses_in_gradients(node: ir.Node) -> list[tuple[ir.Node, int]]:
    """Where gradients make 1 / sqrt(var + epsilon) of the variance that this node saved: with its own epsilon."""
    return [
        (user, index)
        for value in node.outputs[SAVED_VARIANCE : SAVED_VARIANCE + 1]
        for user, index in value.uses()
        if user.op_type in GRADIENTS and index == SAVED_VARIANCE and epsilon(user) == epsilon(node)
    ]


def _statistics_dtype(node: ir.Node) -> ir.DataType:
    """TensorFlow's U: the one type of the parameters and statistics."""
    _, scale, offset, mean, variance = read_inputs(node)
    types = [value.dtype for value in (mean, variance, scale, offset) if value.dtype is not None]
    return types[0] if types else ir.DataType.FLOAT


def _zeros_like(emit: Emitter, scale: ir.Value, dtype: ir.DataType) -> ir.Value:
    # In float, for ONNX Runtime makes no constants of bfloat16.
    zero = ir.tensor(np.zeros(1, np.float32))
    zeros = emit.op("ConstantOfShape", emit.op("Shape", scale), value=zero)
    zeros.dtype, zeros.shape = ir.DataType.FLOAT, scale.shape
    return emit.cast(zeros, dtype)


def _reduced_count(emit: Emitter, x: ir.Value, scale: ir.Value, dtype: ir.DataType) -> ir.Value:
    """M. Not of Size(x), for ONNX Runtime has none of bfloat16."""
    elements, channels = (emit.op("ReduceProd", emit.op("Shape", value), keepdims=0) for value in (x, scale))
    return emit.op("Div", emit.cast(elements, dtype), emit.cast(channels, dtype))


def _unbiased(emit: Emitter, variance: ir.Value, count: ir.Value, dtype: ir.DataType) -> ir.Value:
    """The variance with Bessel's correction, in the type of the variance."""
    one = emit.constant(1.0, dtype)
    bessel = emit.op("Div", count, emit.op("Max", emit.op("Sub", count, one), one))
    return _like(emit, variance, emit.op("Mul", emit.cast(variance, dtype), bessel), dtype)


def _averaged(emit: Emitter, old: ir.Value, new: ir.Value, factor: float, dtype: ir.DataType) -> ir.Value:
    """A running average, in the type of the new value."""
    return _like(emit, new, average(emit, emit.cast(old, dtype), emit.cast(new, dtype), factor, dtype), dtype)


def _like(emit: Emitter, statistic: ir.Value, computed: ir.Value, dtype: ir.DataType) -> ir.Value:
    """What was computed in a type, in the type of a statistic."""
    computed.dtype, computed.shape = dtype, statistic.shape
    return emit.cast(computed, statistic.dtype or dtype)
