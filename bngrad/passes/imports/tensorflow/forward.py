"""FusedBatchNorm, V2 and V3 in training mode -> BatchNormalizationTraining.

With mu and var the mean and biased variance of the batch, M elements per channel, a = exponential_avg_factor::

    batch_mean      = (1 - a) * mean + a * mu                               reserve_space_1 = mu
    batch_variance  = (1 - a) * variance + a * var * M / max(M - 1, 1)      reserve_space_2 = var

If a is 1, mean and variance are not read and may be empty. reserve_space_3 is empty: only cuDNN uses it.

BatchNormalizationTraining saves inv_std, not var. A gradient that reads reserve_space_2 is connected to inv_std
directly. If anything else reads reserve_space_2, the op runs with momentum 0, so that its new running variance is
exactly var, and the running averages are computed by separate nodes. Computing var as 1 / inv_std^2 - epsilon
would lose all digits if var is much smaller than epsilon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from bngrad.graph.batch_norm_terms import average, is_momentum, statistics_dtype
from bngrad.passes.imports.tensorflow.layout import Layout
from bngrad.passes.imports.tensorflow.lost_attributes import GRADIENTS
from bngrad.passes.imports.tensorflow.node import averaging_factor, epsilon, is_used, read_inputs
from bngrad.passes.replace import Emitter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bngrad.passes.base import Context

Y, BATCH_MEAN, BATCH_VARIANCE, SAVED_MEAN, SAVED_VARIANCE, RESERVE_3 = range(6)
"""The indices of the outputs. A gradient takes the last three as its inputs 3 to 5."""


def rewrite_training(node: ir.Node, context: Context) -> None:
    """Rewrites a forward node in training mode that was not refused."""
    emit = Emitter(node, context)
    x, scale, offset, mean, variance = read_inputs(node)
    layout = Layout(node, emit)
    factor, dtype = averaging_factor(node), _statistics_dtype(node)
    gradients = _uses_in_gradients(node)
    saved_variance = node.outputs[SAVED_VARIANCE] if len(node.outputs) > SAVED_VARIANCE else None
    exact = saved_variance is not None and is_used(saved_variance, except_by=gradients)
    exact = exact or not is_momentum(factor, dtype)
    # Statistics that TensorFlow does not read may be empty or NaN.
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
    """Replaces the used outputs of a forward node; reserve_space_3 becomes an empty tensor.

    Args:
        emit: The emitter of the node.
        node: The forward node.
        outputs: The replacements of the outputs, by index.
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
    """Returns the inputs of gradients that read the saved variance of this node and have its epsilon."""
    return [
        (user, index)
        for value in node.outputs[SAVED_VARIANCE : SAVED_VARIANCE + 1]
        for user, index in value.uses()
        if user.op_type in GRADIENTS and index == SAVED_VARIANCE and epsilon(user) == epsilon(node)
    ]


def _statistics_dtype(node: ir.Node) -> ir.DataType:
    """Returns TensorFlow's U, the common type of the parameters and statistics."""
    _, scale, offset, mean, variance = read_inputs(node)
    types = [value.dtype for value in (mean, variance, scale, offset) if value.dtype is not None]
    return types[0] if types else ir.DataType.FLOAT


def _zeros_like(emit: Emitter, scale: ir.Value, dtype: ir.DataType) -> ir.Value:
    # ONNX Runtime's ConstantOfShape has no bfloat16.
    zero = ir.tensor(np.zeros(1, np.float32))
    zeros = emit.op("ConstantOfShape", emit.op("Shape", scale), value=zero)
    zeros.dtype, zeros.shape = ir.DataType.FLOAT, scale.shape
    return emit.cast(zeros, dtype)


def _reduced_count(emit: Emitter, x: ir.Value, scale: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Returns M, the number of elements per channel; ONNX Runtime's Size has no bfloat16."""
    elements, channels = (emit.op("ReduceProd", emit.op("Shape", value), keepdims=0) for value in (x, scale))
    return emit.op("Div", emit.cast(elements, dtype), emit.cast(channels, dtype))


def _unbiased(emit: Emitter, variance: ir.Value, count: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Returns the variance with Bessel's correction, in the type of the variance."""
    one = emit.constant(1.0, dtype)
    bessel = emit.op("Div", count, emit.op("Max", emit.op("Sub", count, one), one))
    return _like(emit, variance, emit.op("Mul", emit.cast(variance, dtype), bessel), dtype)


def _averaged(emit: Emitter, old: ir.Value, new: ir.Value, factor: float, dtype: ir.DataType) -> ir.Value:
    """Returns a running average, in the type of the new value."""
    return _like(emit, new, average(emit, emit.cast(old, dtype), emit.cast(new, dtype), factor, dtype), dtype)


def _like(emit: Emitter, statistic: ir.Value, computed: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Casts a value that was computed in ``dtype`` to the type of a statistic."""
    computed.dtype, computed.shape = dtype, statistic.shape
    return emit.cast(computed, statistic.dtype or dtype)
