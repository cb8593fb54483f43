"""FusedBatchNormGrad, V2 and V3 -> BatchNormalizationGrad.

Both ops take the statistics as inputs: those of the batch in training mode, else those of the population. New
nodes compute inv_std = 1 / sqrt(variance + epsilon), unless the variance was saved by a forward node of this
graph: then the rewrite of that node has already connected its saved_inv_std.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.batch_norm_terms import inverse_std, statistics_dtype
from bngrad.opset.functions import DOMAIN
from bngrad.opset.schemas import signature
from bngrad.passes.imports.tensorflow.layout import Layout
from bngrad.passes.imports.tensorflow.node import epsilon, is_training, is_used, read_inputs
from bngrad.passes.replace import Emitter

if TYPE_CHECKING:
    from bngrad.passes.base import Context


def rewrite_gradient(node: ir.Node, context: Context) -> None:
    """Rewrites a gradient node that was not refused."""
    emit = Emitter(node, context)
    dy, x, scale, mean, variance = read_inputs(node)
    layout = Layout(node, emit)
    if _is_saved_inv_std(variance):
        inv_std = variance
    else:
        inv_std = inverse_std(emit, variance, epsilon(node), statistics_dtype(x))
    # bngrad's op requires one type for mean and inv_std.
    dtype = inv_std.dtype or ir.DataType.FLOAT
    dx, dscale, dbias = emit.bngrad(
        "BatchNormalizationGrad",
        layout.enter(dy),
        layout.enter(x),
        scale,
        emit.cast(mean, dtype),
        inv_std,
        axes=layout.axes,
        training_mode=int(is_training(node)),
    )
    outputs = {0: layout.leave(dx), 1: dscale, 2: dbias}
    # TensorFlow returns empty tensors as reserve_space_4 and reserve_space_5.
    used = [index for index, value in enumerate(node.outputs) if is_used(value)]
    emit.replace({i: outputs[i] if i in outputs else emit.constant([], ir.DataType.FLOAT) for i in used})


def _is_saved_inv_std(value: ir.Value) -> bool:
    """Whether the variance input was replaced by the inverse standard deviation of a rewritten forward node."""
    producer = value.producer()
    if producer is None or (producer.domain, producer.op_type) != (DOMAIN, "BatchNormalizationTraining"):
        return False
    outputs = signature("BatchNormalizationTraining")[1]
    return value.index() == outputs.index("saved_inv_std")
