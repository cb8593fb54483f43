"""TensorFlow's fused batch norm, as tf2onnx exports it -> the ops of ``bngrad``.

A gradient becomes BatchNormalizationGrad, a forward node BatchNormalizationTraining if is_training, else
arithmetic. `tensorflow.lost_attributes` has a third form, a BatchNormalization with more than three outputs.

The domain may be any: tf2onnx puts custom ops into a domain that the user chooses. The attributes T and U are
ignored because tf2onnx drops them; the types are those of the tensors. reserve_space_1 is the mean and
reserve_space_2 the biased variance: those of the batch in training mode, else those of the population. (cuDNN's
inverse standard deviation never appears in a graph.) Only cuDNN uses reserve_space_3.

`tensorflow.refusal` checks nodes, and `tensorflow.forward` rewrites those of the forward pass. A gradient takes
the statistics as inputs. New nodes compute inv_std, unless the variance was saved by a forward node of this graph:
then the rewrite of that node has already connected its saved_inv_std.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.batch_norm_terms import statistics_dtype
from bngrad.opset.functions import DOMAIN
from bngrad.opset.schemas import signature
from bngrad.passes.imports.dialect import DialectPass
from bngrad.passes.imports.foreign_node import ForeignOp
from bngrad.passes.imports.operands import Operands
from bngrad.passes.imports.tensorflow.forward import replace_used, rewrite_frozen, rewrite_training
from bngrad.passes.imports.tensorflow.lost_attributes import GRADIENTS, has_lost_attributes
from bngrad.passes.imports.tensorflow.node import ATTRIBUTES, FORWARDS, TensorflowNode
from bngrad.passes.imports.tensorflow.refusal import reasons

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bngrad.passes.base import Context


def _rewrite_forward(node: TensorflowNode, context: Context) -> None:
    node.require_inputs()
    (rewrite_training if node.training else rewrite_frozen)(node, context)


def _rewrite_gradient(node: TensorflowNode, context: Context) -> None:
    node.require_inputs()
    operands = Operands(node, context)
    variance = node.present("variance")
    if _is_saved_inv_std(variance):
        # bngrad's op requires one type for mean and inv_std.
        mean = operands.parameter("mean", variance.dtype or ir.DataType.FLOAT)
        statistics = {"mean": mean, "inv_std": variance}
    else:
        dtype = statistics_dtype(node.present("X"))
        statistics = operands.frozen_statistics("mean", "variance", node.epsilon, dtype)
    replace_used(operands, operands.apply("BatchNormalizationGrad", statistics, training_mode=int(node.training)))


def _is_saved_inv_std(value: ir.Value) -> bool:
    """Tests whether the variance input became the inverse standard deviation of a rewritten forward node."""
    producer = value.producer()
    if producer is None or (producer.domain, producer.op_type) != (DOMAIN, "BatchNormalizationTraining"):
        return False
    outputs = signature("BatchNormalizationTraining")[1]
    return value.index() == outputs.index("saved_inv_std")


_FORWARD = ForeignOp(
    "x: X, scale, offset: bias, mean: running_mean, variance: running_var "
    "-> y: Y, batch_mean: new_running_mean, batch_variance: new_running_var, reserve_space_1: saved_mean, "
    "reserve_space_2: saved_variance, reserve_space_3: reserve_3",
    attributes=ATTRIBUTES,
    layout="data_format",
    checks=[reasons],
    rewrite=_rewrite_forward,
)
_LOST = replace(
    # X is [N, C, ...], and the default epsilon that of ONNX.
    _FORWARD,
    attributes={**ATTRIBUTES, "epsilon": ATTRIBUTES["epsilon"]._replace(default=1e-5)},
    layout="",
)
_GRADIENT = replace(
    _FORWARD,
    signature="y_backprop: dY, x: X, scale, "
    "reserve_space_1: mean, reserve_space_2: variance, reserve_space_3?: reserve_3 "
    "-> x_backprop: dX, scale_backprop: dscale, offset_backprop: dbias, reserve_space_4, reserve_space_5",
    rewrite=_rewrite_gradient,
)


class ImportTensorflowPass(DialectPass):
    """Rewrites every FusedBatchNorm and FusedBatchNormGrad, all three versions.

    Matches: nodes in any domain except bngrad's, with x of rank 4 or 5 or of unknown rank (then it is reshaped);
    and a BatchNormalization with more than three outputs, to which tf2onnx converts some forward nodes.
    Refuses: nodes that TensorFlow's kernels reject (ranks, shapes, unknown data_format), other types, missing
    inputs, attributes that are not constant, and lost attributes that the graph does not determine.
    Guarantees, in addition to those of `RewritePass`: a gradient reads the mean and the inverse standard deviation
    that its forward node saved, without a detour over the variance.
    """

    ops: Mapping[str | tuple[str, str], ForeignOp] = {
        **dict.fromkeys(FORWARDS, _FORWARD),
        **dict.fromkeys(GRADIENTS, _GRADIENT),
    }
    NODE = TensorflowNode

    def op_of(self, node: ir.Node) -> ForeignOp | None:  # noqa: D102
        return _LOST if has_lost_attributes(node) else super().op_of(node)
