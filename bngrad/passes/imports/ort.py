"""The batch-norm ops that ONNX Runtime's gradient builder writes -> the ops of ``bngrad``.

::

    com.microsoft.BatchNormInternal(X, scale, bias, running_mean, running_var)      {epsilon, momentum}
        -> (Y, new_running_mean, new_running_var, saved_mean, saved_inv_std)
    =>  bngrad.BatchNormalizationTraining(the same, axes)            {epsilon, momentum, unbiased_running_var}

    com.microsoft.BatchNormalizationGrad(dY, X, scale, saved_mean, saved_inv_std)   {epsilon}
        -> (dX, dscale, dbias)
    =>  bngrad.BatchNormalizationGrad(the same, axes)                                {training_mode=1}

ORT's schema names input 4 of the gradient ``variance``, but its gradient builder connects saved_inv_std there and
its kernel reads it as such. The input therefore becomes inv_std unchanged, and epsilon is not needed. ORT's
running variance is biased (unbiased_running_var = 0); the pass has an option to change that.
"""

from __future__ import annotations

import onnx_ir as ir

from bngrad.graph.batch_norms import batch_norm_refusal
from bngrad.opset.ort_dialect import BATCH_NORM_GRAD, BATCH_NORM_INTERNAL
from bngrad.passes.base import Context, RewritePass
from bngrad.passes.imports.channel_axis import forward_attributes, rewrite_in_place

_DATA_INPUTS = {BATCH_NORM_INTERNAL: (0,), BATCH_NORM_GRAD: (0, 1)}
"""The indices of the inputs that have X's shape."""


class ImportOrtPass(RewritePass):
    """Rewrites every BatchNormInternal and BatchNormalizationGrad.

    Matches: X of rank 1 (then C is 1) to 8, or of unknown rank. X of rank 1 or of unknown rank is reshaped to
    [N, C, S].
    Refuses: other ranks and types, missing inputs, parameters whose shape is not [C], and a BatchNormInternal with
    training_mode = 0, for which ORT has no kernel.
    """

    def matches(self, node: ir.Node) -> bool:
        """See `RewritePass`."""
        return (node.domain, node.op_type) in _DATA_INPUTS

    def refusal(self, node: ir.Node) -> str | None:
        """See `RewritePass`."""
        training_mode = node.attributes.get("training_mode")
        if training_mode is not None and training_mode.value != 1:
            got = f"@{training_mode.ref_attr_name}" if training_mode.is_ref() else training_mode.value
            return f"it has training_mode {got}; expected 1, because ORT saves no statistics otherwise"
        data = _DATA_INPUTS[node.domain, node.op_type]
        return batch_norm_refusal(node, data=data)

    def rewrite(self, node: ir.Node, context: Context) -> None:
        """See `RewritePass`."""
        if (node.domain, node.op_type) == BATCH_NORM_GRAD:
            training = [ir.AttrInt64("training_mode", 1)]
            rewrite_in_place(node, "BatchNormalizationGrad", training, context)
        else:
            attributes = forward_attributes(node, unbiased_running_var=self.unbiased_running_var)
            rewrite_in_place(node, "BatchNormalizationTraining", attributes, context)
