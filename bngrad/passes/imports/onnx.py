"""ONNX's own BatchNormalization in training mode -> BatchNormalizationTraining.

::

    BatchNormalization(X, scale, bias, running_mean, running_var)    {epsilon, momentum, training_mode=1}
        -> (Y, new_running_mean, new_running_var)
    =>  bngrad.BatchNormalizationTraining(the same, axes)    {epsilon, momentum, unbiased_running_var}

Stock ONNX Runtime does not run the former safely: a running output that is left out is a segmentation fault, one
that is no graph output overwrites the caller's running_mean and running_var, and equal initializers are merged
and then overwritten, so that Y is wrong. In inference mode it is fine, and is left alone. ONNX's running variance
is the population's, unbiased_running_var = 0, unless the pass is told otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.graph.batch_norms import batch_norm_refusal, is_training_batch_norm
from bngrad.passes.base import Context, ImportPass
from bngrad.passes.imports.channel_axis import forward_attributes, retarget_over_channels

if TYPE_CHECKING:
    import onnx_ir as ir


class ImportOnnxPass(ImportPass):
    """Rewrites every training-mode BatchNormalization.

    Matches: X of rank 1 (C is 1 then) to 8, or of a rank that is not known; these and rank 1 are reshaped to
    [N, C, S].
    Refuses: other ranks and types, missing inputs, parameters of another shape than [C].
    """

    def matches(self, node: ir.Node) -> bool:
        """See `ImportPass`."""
        return is_training_batch_norm(node)

    def refusal(self, node: ir.Node) -> str | None:
        """See `ImportPass`."""
        return batch_norm_refusal(node, data=(0,))

    def rewrite(self, node: ir.Node, context: Context) -> None:
        """See `ImportPass`."""
        attributes = forward_attributes(node, unbiased_running_var=self.unbiased_running_var)
        retarget_over_channels(node, "BatchNormalizationTraining", attributes, context)
