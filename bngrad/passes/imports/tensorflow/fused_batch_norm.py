"""TensorFlow's fused batch norm, as tf2onnx exports it -> the ops of ``bngrad``.

With inv_std = 1 / sqrt(variance + epsilon) and a = exponential_avg_factor::

    FusedBatchNormGrad, V2, V3 (y_backprop, x, scale, reserve_space_1, reserve_space_2[, reserve_space_3])
        {data_format="NHWC", is_training=1, epsilon=1e-4}
        -> (x_backprop, scale_backprop, offset_backprop, reserve_space_4, reserve_space_5)
    =>  bngrad.BatchNormalizationGrad(y_backprop, x, scale, reserve_space_1, inv_std, axes)
            {training_mode=is_training}

    FusedBatchNorm, V2, V3 (x, scale, offset, mean, variance)
        {data_format="NHWC", is_training=1, epsilon=1e-4, exponential_avg_factor=1.0}
        -> (y, batch_mean, batch_variance, reserve_space_1, reserve_space_2[, reserve_space_3])
    =>  bngrad.BatchNormalizationTraining(x, scale, offset, mean, variance, axes)       if is_training
            {epsilon, momentum=1-a, unbiased_running_var=1}
        y = (x - mean) * (scale * inv_std) + offset                                     if not

    BatchNormalization(X, scale, offset, mean, variance) with more than three outputs
    =>  the same, see `tensorflow.lost_attributes`

The domain may be any: tf2onnx puts custom ops into a domain that the user chooses. The attributes T and U are
ignored because tf2onnx drops them; the types are those of the tensors. reserve_space_1 is the mean and
reserve_space_2 the biased variance: those of the batch in training mode, else those of the population. (cuDNN's
inverse standard deviation never appears in a graph.) Only cuDNN uses reserve_space_3.

`tensorflow.refusal` checks nodes; `tensorflow.grad`, `tensorflow.forward` and `tensorflow.frozen` rewrite them;
`tensorflow.layout` handles the position of the channels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.opset.functions import DOMAIN
from bngrad.passes.base import Context, RewritePass
from bngrad.passes.imports.tensorflow.forward import rewrite_training
from bngrad.passes.imports.tensorflow.grad import rewrite_gradient
from bngrad.passes.imports.tensorflow.inference import rewrite_frozen
from bngrad.passes.imports.tensorflow.lost_attributes import GRADIENTS, has_lost_attributes
from bngrad.passes.imports.tensorflow.node import FORWARDS, is_training
from bngrad.passes.imports.tensorflow.refusal import refusal

if TYPE_CHECKING:
    import onnx_ir as ir


class ImportTensorflowPass(RewritePass):
    """Rewrites every FusedBatchNorm and FusedBatchNormGrad, all three versions.

    Matches: nodes in any domain except bngrad's, with x of rank 4 or 5 or of unknown rank (then it is reshaped);
    and a BatchNormalization with more than three outputs, which tf2onnx makes of some forward nodes.
    Refuses: nodes that TensorFlow's kernels reject (ranks, shapes, unknown data_format), other types, missing
    inputs, attributes that are not constant, and lost attributes that the graph does not determine.
    Guarantees, in addition to those of `RewritePass`: a gradient reads the mean and the inverse standard deviation
    that its forward node saved, without a detour over the variance.
    """

    def matches(self, node: ir.Node) -> bool:
        """See `RewritePass`."""
        tensorflow = node.domain != DOMAIN and (node.op_type in GRADIENTS or node.op_type in FORWARDS)
        return tensorflow or has_lost_attributes(node)

    def refusal(self, node: ir.Node) -> str | None:
        """See `RewritePass`."""
        return refusal(node)

    def rewrite(self, node: ir.Node, context: Context) -> None:
        """See `RewritePass`."""
        if node.op_type in GRADIENTS:
            rewrite_gradient(node, context)
        elif is_training(node):
            rewrite_training(node, context)
        else:
            rewrite_frozen(node, context)
