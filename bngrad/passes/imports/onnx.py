"""ONNX's BatchNormalization in training mode -> BatchNormalizationTraining.

::

    BatchNormalization(X, scale, bias, running_mean, running_var)    {epsilon, momentum, training_mode=1}
        -> (Y, new_running_mean, new_running_var)
    =>  bngrad.BatchNormalizationTraining(the same, axes)    {epsilon, momentum, unbiased_running_var}

Stock ONNX Runtime cannot run the ONNX op safely in training mode: an omitted running output causes a segmentation
fault, a running output that is not a graph output overwrites the caller's running_mean or running_var, and equal
initializers are merged and then overwritten, which makes Y wrong. In inference mode the op is safe and left as it
is. ONNX defines the running variance as biased (unbiased_running_var = 0); the pass has an option to change that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.graph.batch_norms import batch_norm_refusal, is_training_batch_norm
from bngrad.passes.base import Context, RewritePass
from bngrad.passes.imports.channel_axis import forward_attributes, rewrite_in_place

if TYPE_CHECKING:
    import onnx_ir as ir


class ImportOnnxPass(RewritePass):
    """Rewrites every BatchNormalization in training mode.

    Matches: X of rank 1 (then C is 1) to 8, or of unknown rank. X of rank 1 or of unknown rank is reshaped to
    [N, C, S].
    Refuses: other ranks and types, missing inputs, and parameters whose shape is not [C].
    """

    def matches(self, node: ir.Node) -> bool:
        """See `RewritePass`."""
        return is_training_batch_norm(node)

    def refusal(self, node: ir.Node) -> str | None:
        """See `RewritePass`."""
        return batch_norm_refusal(node, data=(0,))

    def rewrite(self, node: ir.Node, context: Context) -> None:
        """See `RewritePass`."""
        attributes = forward_attributes(node, unbiased_running_var=self.unbiased_running_var)
        rewrite_in_place(node, "BatchNormalizationTraining", attributes, context)
