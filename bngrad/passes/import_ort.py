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

from typing import NamedTuple

import onnx_ir as ir

from bngrad.ort_dialect import BATCH_NORM_GRAD, BATCH_NORM_INTERNAL
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


class _Signature(NamedTuple):
    op_type: str
    inputs: int
    data_inputs: tuple[int, ...]
    """The inputs that have X's shape; output 0 has it too."""


_SIGNATURES = {
    BATCH_NORM_INTERNAL: _Signature("BatchNormalizationTraining", inputs=5, data_inputs=(0,)),
    BATCH_NORM_GRAD: _Signature("BatchNormalizationGrad", inputs=5, data_inputs=(0, 1)),
}


class ImportOrtPass(ir.passes.InPlacePass):
    """Rewrites every BatchNormInternal and BatchNormalizationGrad of a model, its subgraphs and its functions.

    Matches: float and double, X of rank 2 to 8 or of a rank that is not known (then it is reshaped to [N, C, S]).
    Refuses, with `UnsupportedNodeError` and before it changes anything: other types and ranks, missing inputs,
    and a BatchNormInternal with training_mode = 0, which ORT has no kernel for.
    Guarantees: no such node is left; names are as before.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        found = [node for node in all_nodes(model) if (node.domain, node.op_type) in _SIGNATURES]
        raise_refusals([(node, reason) for node in found if (reason := _refusal(node))])
        axes = ConstantAxes(Names(model))
        for node in found:
            _rewrite(node, _SIGNATURES[node.domain, node.op_type], axes)
        return ir.passes.PassResult(model, modified=bool(found))

    def ensures(self, model: ir.Model) -> None:
        """No batch norm of ORT's dialect is left."""
        for node in all_nodes(model):
            if (node.domain, node.op_type) in _SIGNATURES:
                raise ir.passes.PostconditionError(f"{node.name} is still {node.op_type}")


def _refusal(node: ir.Node) -> str | None:
    signature = _SIGNATURES[node.domain, node.op_type]
    if "training_mode" in node.attributes and node.attributes["training_mode"].value != 1:
        return "it has training_mode 0; expected 1, for ORT saves no statistics otherwise"
    return refusal(node, inputs=signature.inputs, data=signature.data_inputs, minimum_rank=2, layout="[N, C, ...]")


def _rewrite(node: ir.Node, signature: _Signature, axes: ConstantAxes) -> None:
    rank = known_rank([*(node.inputs[i] for i in signature.data_inputs), node.outputs[0]])
    if rank is None:
        collapse_spatial(node, signature.data_inputs, (0,), axes.names)
    reduced = COLLAPSED_AXES if rank is None else channel_axes(rank)
    is_grad = signature.op_type == "BatchNormalizationGrad"
    attributes = [ir.AttrInt64("training_mode", 1)] if is_grad else forward_attributes(node)
    retarget(node, signature.op_type, axes.value(node, reduced), attributes)
