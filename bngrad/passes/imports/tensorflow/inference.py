"""FusedBatchNorm, V2 and V3 in inference mode -> arithmetic ops of standard ONNX.

::

    y = (x - mean) * (scale / sqrt(variance + epsilon)) + offset
    batch_mean = reserve_space_1 = mean          batch_variance = reserve_space_2 = variance

The reserve outputs are those of TensorFlow's oneDNN kernels. Its Eigen kernels leave them uninitialized, and its
gradients read mean and variance directly.

ONNX's BatchNormalization is not used: ONNX Runtime's kernel multiplies before it subtracts the mean, which loses
precision if |mean| is large compared with std, and it supports neither all types nor channels-last data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.graph.batch_norm_terms import inverse_std, statistics_dtype
from bngrad.passes.imports.tensorflow.forward import (
    BATCH_MEAN,
    BATCH_VARIANCE,
    SAVED_MEAN,
    SAVED_VARIANCE,
    Y,
    replace_used,
)
from bngrad.passes.imports.tensorflow.layout import Layout
from bngrad.passes.imports.tensorflow.node import epsilon, read_inputs
from bngrad.passes.replace import Emitter

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.passes.base import Context


def rewrite_frozen(node: ir.Node, context: Context) -> None:
    """Rewrites a forward node in inference mode that was not refused."""
    emit = Emitter(node, context)
    x, scale, offset, mean, variance = read_inputs(node)
    layout = Layout(node, emit)
    dtype = statistics_dtype(x)
    factor = emit.op("Mul", emit.cast(scale, dtype), inverse_std(emit, variance, epsilon(node), dtype))
    centered = emit.op("Sub", emit.cast(layout.enter(x), dtype), layout.broadcastable(emit.cast(mean, dtype)))
    scaled = emit.op("Mul", centered, layout.broadcastable(factor))
    y = emit.op("Add", scaled, layout.broadcastable(emit.cast(offset, dtype)))
    if x.dtype != dtype:
        y = emit.op("CastLike", y, x)
    y = layout.leave(y)
    outputs = {Y: y, BATCH_MEAN: mean, BATCH_VARIANCE: variance, SAVED_MEAN: mean, SAVED_VARIANCE: variance}
    replace_used(emit, node, outputs)
    emit.take_over(y.producer())
