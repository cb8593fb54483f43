"""Builds the training graph of a forward model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from onnx_ir.passes.common import RemoveUnusedNodesPass

from bngrad.autodiff.loss_and_wrt import find_loss, find_wrt
from bngrad.autodiff.new_statistics import new_statistics, running_statistics
from bngrad.autodiff.prepare_forward import make_inputs, prepare
from bngrad.autodiff.rules.normalization import UNBIASED
from bngrad.autodiff.share_loss import share_loss
from bngrad.autodiff.stop_gradient import stops_to_identity
from bngrad.autodiff.walk import add_gradients
from bngrad.graph.gc_pause import without_collections
from bngrad.opset.functions import DOMAIN
from bngrad.opset.ort_dialect import BATCH_NORM_INTERNAL, MICROSOFT
from bngrad.options import ForwardOptions

if TYPE_CHECKING:
    from typing import Unpack

    import onnx_ir as ir

    from bngrad.options import ForwardKeywords


class Training(NamedTuple):
    """A training graph, and the names that a training loop needs."""

    model: ir.Model
    loss: str
    gradients: dict[str, str]
    """The output that holds the gradient with respect to an input, by the name of the input."""
    running_statistics: dict[str, str]
    """The output that holds a new running statistic, by the name of the input that takes it in the next step."""


@without_collections()
def training_graph(
    model: ir.Model,
    options: ForwardOptions = ForwardOptions(),
    *,
    unbiased_running_var: bool = False,
    share: bool = False,
    **changes: Unpack[ForwardKeywords],
) -> Training:
    """Returns a copy of a forward model with the gradients of a loss as further outputs, in ORT's dialect.

    Weights and running statistics become graph inputs with their values as defaults; the new running statistics
    become outputs. Frozen batch norms, which ORT's dialect cannot express, are ops of ``bngrad``.

    Args:
        model: The forward model; it is not changed.
        options: The options of `bngrad.differentiate`; ``unbiased_running_var`` is the one below.
        unbiased_running_var: Whether the running variances become unbiased later, which changes the gradient of a
            loss that reads them.
        share: Whether to replace the loss by this rank's share of the loss of the whole batch; see `share_loss`.
        changes: Options that replace those in ``options``.

    Raises:
        ModelError: A name is wrong, or the model cannot be differentiated.
        UnsupportedNodeError: Nodes between the loss and ``wrt`` have no gradient.
    """
    options = replace(options, **changes)
    result = prepare(model, options)
    for node in result.graph:
        if unbiased_running_var and (node.domain, node.op_type) == BATCH_NORM_INTERNAL:
            node.meta[UNBIASED] = True
    target = find_loss(result, options.loss)
    if not target.is_graph_output():
        result.graph.outputs.append(target)
    names = [str(value.name) for value in find_wrt(result, options.wrt, target)]
    if share:
        target = share_loss(result, target, names)
    make_inputs(result.graph, [*find_wrt(result, names, target), *running_statistics(result)])
    gradients = add_gradients(result, target, find_wrt(result, names, target))
    stops_to_identity(result)
    RemoveUnusedNodesPass()(result)
    for domain in sorted({node.domain for node in result.graph} & {MICROSOFT, DOMAIN}):
        result.opset_imports.setdefault(domain, 1)
    running = {str(old.name): str(new.name) for old, new in new_statistics(result).items()}
    return Training(result, str(target.name), gradients, running)
