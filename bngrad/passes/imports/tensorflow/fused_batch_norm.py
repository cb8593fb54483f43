"""TensorFlow's fused batch norm, as tf2onnx leaves it -> the ops of ``bngrad``.

With inv_std = 1 / sqrt(variance + epsilon), and a the exponential_avg_factor::

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
    =>  the same, see `tensorflow.lost`

The domain is any: a node whose op tf2onnx does not know, or was told to keep, gets the domain that the user named.
The attributes T and U are not looked at, for tf2onnx drops them: the types are those of the tensors.
reserve_space_1 is the mean and reserve_space_2 the biased variance, in training those of the batch and else those
of the population; cuDNN's inverse deviation never reaches a graph. reserve_space_3 is cuDNN's alone.

`tensorflow.refusal` says what is refused, `tensorflow.grad`, `tensorflow.forward` and
`tensorflow.frozen` how each kind is rewritten, `tensorflow.layout` where the channels are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.opset.functions import DOMAIN
from bngrad.passes.base import Context, ImportPass
from bngrad.passes.imports.tensorflow.forward import rewrite_training
from bngrad.passes.imports.tensorflow.frozen import rewrite_frozen
from bngrad.passes.imports.tensorflow.grad import rewrite_gradient
from bngrad.passes.imports.tensorflow.lost_reserves import GRADIENTS, has_lost_attributes
from bngrad.passes.imports.tensorflow.node import FORWARDS, is_training
from bngrad.passes.imports.tensorflow.refusal import refusal

if TYPE_CHECKING:
    import onnx_ir as ir


class ImportTensorflowPass(ImportPass):
    """Rewrites every FusedBatchNorm and FusedBatchNormGrad of the three versions.

    Matches: any domain but ours; x of rank 4 or 5, or of a rank that is not known (then it is reshaped); and a
    BatchNormalization of more than three outputs, which is what tf2onnx makes of a forward node.
    Refuses: what TensorFlow's kernels refuse (ranks, shapes, a data_format that does not exist), other types,
    missing inputs, attributes that are no constants, and a lost attribute that nothing in the graph tells.
    Guarantees, beside those of `ImportPass`: a gradient takes the mean and the inverse deviation that its forward
    node saved, not a variance that is made of the latter and turned back.
    """

    def matches(self, node: ir.Node) -> bool:
        """See `ImportPass`."""
        tensorflow = node.domain != DOMAIN and (node.op_type in GRADIENTS or node.op_type in FORWARDS)
        return tensorflow or has_lost_attributes(node)

    def refusal(self, node: ir.Node) -> str | None:
        """See `ImportPass`."""
        return refusal(node)

    def rewrite(self, node: ir.Node, context: Context) -> None:
        """See `ImportPass`."""
        if node.op_type in GRADIENTS:
            rewrite_gradient(node, context)
        elif is_training(node):
            rewrite_training(node, context)
        else:
            rewrite_frozen(node, context)
