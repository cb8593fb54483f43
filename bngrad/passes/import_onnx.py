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

from bngrad.passes.constants import ConstantAxes, Names
from bngrad.passes.nodes import (
    all_nodes,
    channel_axes,
    forward_attributes,
    known_rank,
    raise_refusals,
    refusal,
    retarget,
)
from bngrad.passes.unknown_rank import COLLAPSED_AXES, collapse_spatial


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
        axes = ConstantAxes(Names(model))
        for node in found:
            rank = known_rank([node.inputs[0], node.outputs[0]])
            if rank is None:
                collapse_spatial(node, inputs=(0,), outputs=(0,), names=axes.names)
            reduced = COLLAPSED_AXES if rank is None else channel_axes(rank)
            retarget(node, "BatchNormalizationTraining", axes.value(node, reduced), forward_attributes(node))
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
