"""ONNX's own BatchNormalization in training mode -> BatchNormalizationTraining.

::

    BatchNormalization(X, scale, bias, running_mean, running_var)    {epsilon, momentum, training_mode=1}
        -> (Y, new_running_mean, new_running_var)
    =>  bngrad.BatchNormalizationTraining(the same, axes)    {epsilon, momentum, unbiased_running_var=0}

Stock ONNX Runtime does not run the former safely: a running output that is left out is a segmentation fault, one
that is no graph output overwrites the caller's running_mean and running_var, and equal initializers are merged
and then overwritten, so that Y is wrong. In inference mode it is fine, and is left alone.
"""

from __future__ import annotations

import onnx_ir as ir

from bngrad.passes.nodes import all_nodes, raise_refusals, refusal
from bngrad.passes.retarget import Retargeter, forward_attributes


class ImportOnnxPass(ir.passes.InPlacePass):
    """Rewrites every training-mode BatchNormalization of a model, its subgraphs and its functions.

    Matches: float and double, X of rank 2 to 8 or of a rank that is not known (then it is reshaped to [N, C, S]).
    Refuses, with `UnsupportedNodeError` and before it changes anything: other types and ranks, missing inputs.
    Guarantees: no such node is left; names are as before.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        found = [node for node in all_nodes(model) if is_training_batch_norm(node)]
        reasons = [
            (node, refusal(node, inputs=5, data=(0,), minimum_rank=2, layout="[N, C, ...]")) for node in found
        ]
        raise_refusals([(node, reason) for node, reason in reasons if reason])
        retargeter = Retargeter(model)
        for node in found:
            retargeter.over_channels(node, "BatchNormalizationTraining", forward_attributes(node))
        return ir.passes.PassResult(model, modified=bool(found))

    def ensures(self, model: ir.Model) -> None:
        """No training-mode BatchNormalization is left."""
        for node in all_nodes(model):
            if is_training_batch_norm(node):
                raise ir.passes.PostconditionError(f"{node.name} is still a training-mode BatchNormalization")


def is_training_batch_norm(node: ir.Node) -> bool:
    """Whether a node is ONNX's BatchNormalization with training_mode = 1."""
    if (node.domain, node.op_type) != ("", "BatchNormalization"):
        return False
    training_mode = node.attributes.get("training_mode")
    return training_mode is not None and training_mode.value == 1
