"""Batch norm as ONNX Runtime's gradient builder writes it -> the ops of ``bngrad``.

::

    com.microsoft.BatchNormInternal(X, scale, bias, running_mean, running_var)      {epsilon, momentum}
        -> (Y, new_running_mean, new_running_var, saved_mean, saved_inv_std)
    =>  bngrad.BatchNormalizationTraining(the same, axes)            {epsilon, momentum, unbiased_running_var=0}

    com.microsoft.BatchNormalizationGrad(dY, X, scale, saved_mean, saved_inv_std)   {epsilon}
        -> (dX, dscale, dbias)
    =>  bngrad.BatchNormalizationGrad(the same, axes)                                {training_mode=1}

ORT's schema names input 4 of the gradient ``variance``; its builder connects saved_inv_std there, and its kernel
takes it as such, so it goes to inv_std as it is, and epsilon is not needed. Its running variance is the
population's.
"""

from __future__ import annotations

import onnx_ir as ir

from bngrad.ort_dialect import BATCH_NORM_GRAD, BATCH_NORM_INTERNAL
from bngrad.passes.nodes import all_nodes, raise_refusals, refusal
from bngrad.passes.retarget import Retargeter, forward_attributes

_DATA_INPUTS = {BATCH_NORM_INTERNAL: (0,), BATCH_NORM_GRAD: (0, 1)}
"""Which inputs have X's shape."""


class ImportOrtPass(ir.passes.InPlacePass):
    """Rewrites every BatchNormInternal and BatchNormalizationGrad of a model, its subgraphs and its functions.

    Matches: float and double, X of rank 2 to 8 or of a rank that is not known (then it is reshaped to [N, C, S]).
    Refuses, with `UnsupportedNodeError` and before it changes anything: other types and ranks, missing inputs,
    and a BatchNormInternal with training_mode = 0, which ORT has no kernel for.
    Guarantees: no such node is left; names are as before.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        found = [node for node in all_nodes(model) if (node.domain, node.op_type) in _DATA_INPUTS]
        raise_refusals([(node, reason) for node in found if (reason := _refusal(node))])
        retargeter = Retargeter(model)
        for node in found:
            if (node.domain, node.op_type) == BATCH_NORM_GRAD:
                retargeter.over_channels(node, "BatchNormalizationGrad", [ir.AttrInt64("training_mode", 1)])
            else:
                retargeter.over_channels(node, "BatchNormalizationTraining", forward_attributes(node))
        return ir.passes.PassResult(model, modified=bool(found))

    def ensures(self, model: ir.Model) -> None:
        """No batch norm of ORT's dialect is left."""
        for node in all_nodes(model):
            if (node.domain, node.op_type) in _DATA_INPUTS:
                raise ir.passes.PostconditionError(f"{node.name} is still {node.op_type}")


def _refusal(node: ir.Node) -> str | None:
    training_mode = node.attributes.get("training_mode")
    if training_mode is not None and training_mode.value != 1:
        got = f"@{training_mode.ref_attr_name}" if training_mode.is_ref() else training_mode.value
        return f"it has training_mode {got}; expected 1, for ORT saves no statistics otherwise"
    data = _DATA_INPUTS[node.domain, node.op_type]
    return refusal(node, inputs=5, data=data, minimum_rank=2, layout="[N, C, ...]")
