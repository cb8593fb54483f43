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
from bngrad.passes.imports.operands import Operands
from bngrad.passes.imports.tensorflow.lost_attributes import GRADIENTS
from bngrad.passes.imports.tensorflow.node import ATTRIBUTES, is_used

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bngrad.passes.base import Context
    from bngrad.passes.imports.tensorflow.node import TensorflowNode
    from bngrad.passes.replace import Emitter

_SAVED_VARIANCE = 4
"""The index of the output, and of the input of a gradient that takes it."""


def rewrite_training(node: TensorflowNode, context: Context) -> None:
    """Rewrites a forward node in training mode that was not refused."""
    operands = Operands(node, context)
    emit, x, scale = operands.emit, node.present("X"), node.present("scale")
    mean, variance = node.present("running_mean"), node.present("running_var")
    factor, dtype = node.averaging_factor, _statistics_dtype(node)
    gradients = _uses_in_gradients(node)
    saved_variance = node.outputs.get("saved_variance")
    exact = saved_variance is not None and is_used(saved_variance, except_by=gradients)
    exact = exact or not is_momentum(factor, dtype)
    # Statistics that TensorFlow does not read may be empty or NaN.
    unread = _zeros_like(emit, scale, dtype) if exact or factor == 1.0 else None
    results = operands.apply(
        "BatchNormalizationTraining",
        {"running_mean": unread or mean, "running_var": unread or variance},
        epsilon=node.epsilon,
        momentum=0.0 if exact else 1.0 - factor,
        unbiased_running_var=int(not exact),
    )
    statistics = {quantity: value for quantity, value in results.items() if quantity != "Y"}
    for statistic in statistics.values():
        statistic.dtype, statistic.shape = dtype, scale.shape
    for gradient, index in gradients:
        gradient.replace_input_with(index, results["saved_inv_std"])
    outputs = dict(results)
    if exact:
        compute = statistics_dtype(x)
        unbiased = _unbiased(emit, results["new_running_var"], _reduced_count(emit, x, scale, compute), compute)
        outputs["new_running_mean"] = _averaged(emit, mean, results["saved_mean"], factor, compute)
        outputs["new_running_var"] = _averaged(emit, variance, unbiased, factor, compute)
        outputs["saved_variance"] = results["new_running_var"]
    replace_used(operands, outputs)


def rewrite_frozen(node: TensorflowNode, context: Context) -> None:
    """Rewrites a forward node in inference mode that was not refused.

    The reserve outputs are those of TensorFlow's oneDNN kernels, mean and variance. Its Eigen kernels leave them
    uninitialized, and its gradients read mean and variance directly.
    """
    operands = Operands(node, context)
    x, mean, variance = (node.present(quantity) for quantity in ("X", "running_mean", "running_var"))
    dtype = statistics_dtype(x)
    y = operands.normalize(node.epsilon, dtype)
    if x.dtype != dtype:
        y = operands.emit.op("CastLike", y, x)
    statistics = {"new_running_mean": mean, "new_running_var": variance}
    replace_used(operands, {"Y": y, **statistics, "saved_mean": mean, "saved_variance": variance})
    operands.emit.take_over(y.producer())


def replace_used(operands: Operands, outputs: Mapping[str, ir.Value]) -> None:
    """Replaces the used outputs of a node; those without a value, which only cuDNN fills, become empty tensors.

    Args:
        operands: The operands of the node.
        outputs: The replacements of the outputs, by quantity.
    """
    node = operands.node
    if (reserve := node.outputs.get("reserve_3")) is not None:
        for user, index in tuple(reserve.uses()):
            if user.op_type in GRADIENTS:
                user.replace_input_with(index, None)
    used = filter(node.used, node.outputs)
    operands.replace(
        {q: outputs[q] if q in outputs else operands.emit.constant([], ir.DataType.FLOAT) for q in used}
    )


def _uses_in_gradients(node: TensorflowNode) -> list[tuple[ir.Node, int]]:
    """Returns the inputs of gradients that read the saved variance of this node and have its epsilon."""
    value = node.outputs.get("saved_variance")
    return [
        (user, index)
        for user, index in (() if value is None else value.uses())
        if user.op_type in GRADIENTS and index == _SAVED_VARIANCE and _epsilon(user) == node.epsilon
    ]


def _epsilon(gradient: ir.Node) -> float:
    attribute = gradient.attributes.get("epsilon")
    return float(ATTRIBUTES["epsilon"].default if attribute is None else attribute.value)


def _statistics_dtype(node: TensorflowNode) -> ir.DataType:
    """Returns TensorFlow's U, the common type of the parameters and statistics."""
    values = (node.present(quantity) for quantity in ("running_mean", "running_var", "scale", "bias"))
    return next((value.dtype for value in values if value.dtype is not None), ir.DataType.FLOAT)


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
    unit = emit.constant(1.0, dtype)
    bessel = emit.op("Div", count, emit.op("Max", emit.op("Sub", count, unit), unit))
    return _like(emit, variance, emit.op("Mul", emit.cast(variance, dtype), bessel), dtype)


def _averaged(emit: Emitter, old: ir.Value, new: ir.Value, factor: float, dtype: ir.DataType) -> ir.Value:
    """Returns a running average, in the type of the new value."""
    return _like(emit, new, average(emit, emit.cast(old, dtype), emit.cast(new, dtype), factor, dtype), dtype)


def _like(emit: Emitter, statistic: ir.Value, computed: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Casts a value that was computed in ``dtype`` to the type of a statistic."""
    computed.dtype, computed.shape = dtype, statistic.shape
    return emit.cast(computed, statistic.dtype or dtype)
