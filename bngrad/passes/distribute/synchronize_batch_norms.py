"""Batch norms with the statistics of the whole batch, whose rows are spread over the ranks.

::

    Y, new_mean, new_var, mean, inv_std
                 = BatchNormalizationTraining(X, scale, bias, running_mean, running_var, axes)
    =>  moments  = BatchNormalizationMoments(X, axes)
        gathered = AllGather(moments)                                           key "<node>/moments"
        new_mean, new_var, batch_mean, batch_inv_std, batch_count
                 = BatchNormalizationMergeMoments(gathered, running_mean, running_var)
        Y        = BatchNormalizationApply(X, scale, bias, batch_mean, batch_inv_std, axes)

    dX, dscale, dbias
                 = BatchNormalizationGrad(dY, X, scale, mean, inv_std, axes)    training_mode = 1
    =>  operands = dY, X, scale, batch_mean, batch_inv_std
        sums, dscale, dbias
                 = BatchNormalizationGradSums(operands, axes)
        gathered = AllGather(sums)                                              key "<node>/sums"
        dX       = BatchNormalizationGradApply(operands, gathered, batch_count, axes)

and the same of BatchNormalizationReluGrad. dscale and dbias are those of this rank's rows, as the gradients of all
weights are; `reduce_gradients` sums them. A frozen batch norm has no statistics of the batch and stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.batch_norms import PER_SAMPLE
from bngrad.graph.node_reader import dtype_of, read_attribute
from bngrad.graph.nodes import all_nodes, is_read, raise_refusals, remove_unused
from bngrad.graph.same_values import SAME_ORDER, origin
from bngrad.opset.functions import DOMAIN
from bngrad.opset.schemas import signature
from bngrad.passes.base import RewritePass
from bngrad.passes.distribute.collectives import Keys
from bngrad.passes.replace import Emitter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bngrad.passes.base import Context

_FORWARD = "BatchNormalizationTraining"
_MERGE = "BatchNormalizationMergeMoments"
_GRADIENTS = {"BatchNormalizationGrad": 2, "BatchNormalizationReluGrad": 3}
"""The number of inputs of X's shape that each gradient has; its scale, mean and inv_std come next."""

_INSIDE = "it is in a subgraph or function, which the ranks may run differently; expected the main graph"


class SynchronizeBatchNormsPass(RewritePass):
    """Splits every training batch norm and its gradient at their sums, and gathers these from all ranks.

    Matches: BatchNormalizationTraining; BatchNormalizationGrad and BatchNormalizationReluGrad with
    training_mode = 1, except those of an instance or group norm, whose statistics are of one sample.
    Refuses: missing inputs; a gradient whose statistics no BatchNormalizationTraining of the graph computes;
    second derivatives; batch norms in subgraphs and functions, which the ranks may run differently.
    Guarantees: the op with the main output, Y or dX, keeps the name of the node. The keys of the collectives are
    unique. A collective whose result nothing reads is left out.
    """

    def matches(self, node: ir.Node) -> bool:
        """Returns whether a node has statistics of the whole batch, or is a second derivative."""
        if node.domain != DOMAIN or node.meta.get(PER_SAMPLE):
            return False
        return node.op_type in (_FORWARD, "BatchNormalizationGradGrad") or (
            node.op_type in _GRADIENTS and not _is_frozen(node)
        )

    def refusal(self, node: ir.Node) -> str | None:
        """Returns the reason why a batch norm or gradient cannot be split; None if it can."""
        if node.op_type == "BatchNormalizationGradGrad":
            return "second derivatives cannot be synchronized over ranks; expected only first derivatives"
        present, expected = len(_present(node)), len(signature(node.op_type)[0])
        if present != expected or len(node.inputs) != expected:
            return f"it has {present} of {len(node.inputs)} inputs; expected {expected}, all present"
        if node.op_type in _GRADIENTS and _merge_of(node) is None and not _has_forward(node):
            mean = node.inputs[_GRADIENTS[node.op_type] + 1]
            return (
                f"its statistics (mean {mean.name if mean is not None else ''!r}) are not those of a "
                "BatchNormalizationTraining of the graph; expected a graph with the forward pass"
            )
        return None

    def rewrite(self, node: ir.Node, context: Context) -> None:
        """Splits a batch norm or gradient, with a collective between the parts."""
        emit = Emitter(node, context)
        if node.op_type == _FORWARD:
            _split_forward(node, emit, self._key(node, "moments"))
        else:
            _split_gradient(node, emit, self._key(node, "sums"))

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        inside = [node for node in self._matching(model) if node.graph is not model.graph]
        raise_refusals([(node, _INSIDE) for node in inside])
        self._keys = Keys(model)
        result = super().call(model)
        remove_unused(list(_casts_of_statistics(model)))  # those that only the gradients used
        return result

    def _key(self, node: ir.Node, suffix: str) -> str:
        return self._keys.unique(f"{node.name or node.outputs[0].name or node.op_type}/{suffix}")


def _split_forward(node: ir.Node, emit: Emitter, key: str) -> None:
    x, scale, bias, running_mean, running_var, axes = _present(node)
    (moments,) = emit.bngrad("BatchNormalizationMoments", x, axes=axes)
    (gathered,) = emit.bngrad("AllGather", moments, key=key)
    new_mean, new_var, mean, inv_std, _ = emit.bngrad(
        _MERGE,
        gathered,
        running_mean,
        running_var,
        epsilon=read_attribute(node, "epsilon", 1e-5),
        momentum=read_attribute(node, "momentum", 0.9),
        unbiased_running_var=read_attribute(node, "unbiased_running_var", 0),
    )
    for value in (mean, inv_std):
        value.dtype, value.shape = ir.DataType.DOUBLE, running_mean.shape
    (y,) = emit.bngrad("BatchNormalizationApply", x, scale, bias, mean, inv_std, axes=axes)
    outputs = dict(enumerate([y, new_mean, new_var]))
    for index, value in ((3, mean), (4, inv_std)):
        if index < len(node.outputs) and is_read(node.outputs[index]):
            outputs[index] = emit.cast(value, dtype_of(running_mean))
    emit.replace({index: value for index, value in outputs.items() if index < len(node.outputs)})


def _split_gradient(node: ir.Node, emit: Emitter, key: str) -> None:
    count = _GRADIENTS[node.op_type]
    *values, axes = _present(node)
    data, scale = values[:count], values[count]
    merge = _merge_of(node)
    assert merge is not None, "it was not refused, and its forward op was rewritten before it"  # noqa: S101
    mean, inv_std, batch_count = merge.outputs[2:5]
    operands = [*data, scale, mean, inv_std]
    sums, dscale, dbias = emit.bngrad(f"{node.op_type}Sums", *operands, axes=axes)
    outputs = {1: dscale, 2: dbias}
    if is_read(node.outputs[0]):
        (gathered,) = emit.bngrad("AllGather", sums, key=key)
        (outputs[0],) = emit.bngrad(f"{node.op_type}Apply", *operands, gathered, batch_count, axes=axes)
    else:
        emit.take_over(dscale.producer())
    emit.replace({index: value for index, value in outputs.items() if index < len(node.outputs)})


def _present(node: ir.Node) -> list[ir.Value]:
    return [value for value in node.inputs if value is not None]


def _is_frozen(node: ir.Node) -> bool:
    training_mode = node.attributes.get("training_mode")
    return training_mode is not None and not training_mode.is_ref() and training_mode.value == 0


def _maker_of_statistics(node: ir.Node, op_type: str, first: int) -> ir.Node | None:
    """The node of an op whose outputs from the first on are the mean and inv_std of a gradient."""
    makers = []
    for place in (0, 1):
        operand = node.inputs[_GRADIENTS[node.op_type] + 1 + place]
        if operand is None:
            return None
        value = origin(operand, SAME_ORDER)
        maker = value.producer()
        if maker is None or (maker.domain, maker.op_type) != (DOMAIN, op_type) or value.index() != first + place:
            return None
        if operand.shape is not None and value.shape is not None and len(operand.shape) != len(value.shape):
            return None
        makers.append(maker)
    return makers[0] if makers[0] is makers[1] else None


def _has_forward(node: ir.Node) -> bool:
    forward = _maker_of_statistics(node, _FORWARD, 3)
    return forward is not None and forward.graph is node.graph


def _merge_of(node: ir.Node) -> ir.Node | None:
    return _maker_of_statistics(node, _MERGE, 2)


def _casts_of_statistics(model: ir.Model) -> Iterator[ir.Node]:
    for node in all_nodes(model):
        if node.op_type == "Cast" and node.inputs[0] is not None:
            maker = node.inputs[0].producer()
            if maker is not None and (maker.domain, maker.op_type) == (DOMAIN, _MERGE):
                yield node
