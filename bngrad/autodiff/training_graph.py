"""Builds the training graph of a forward model."""

from __future__ import annotations

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

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from bngrad.autodiff.running_statistics import SharedStatistics


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
    *,
    loss: str | None = None,
    wrt: Sequence[str] | None = None,
    frozen: Sequence[str] = (),
    training: Sequence[str] = (),
    shared_statistics: SharedStatistics | None = None,
    unbiased_running_var: bool = False,
    share: bool = False,
) -> Training:
    """Returns a copy of a forward model with the gradients of a loss as further outputs, in ORT's dialect.

    Weights and running statistics become graph inputs with their values as defaults; the new running statistics
    become outputs. Frozen batch norms, which ORT's dialect cannot express, are ops of ``bngrad``.

    Args:
        model: The forward model; it is not changed.
        loss: The name of a float scalar; by default the only one among the outputs.
        wrt: Names of inputs and initializers; by default the weights.
        frozen: Names of batch norms, or patterns, that use their running statistics.
        training: The same for those that use the batch's statistics.
        shared_statistics: How batch norms that read the same running statistic are separated.
        unbiased_running_var: Whether the running variances become unbiased later, which changes the gradient of a
            loss that reads them.
        share: Whether the loss is to be this rank's share of the loss of the whole batch; see `share_loss`.

    Raises:
        ModelError: A name is wrong, or the model cannot be differentiated.
        UnsupportedNodeError: Nodes between the loss and ``wrt`` have no gradient.
    """
    result = prepare(model, frozen=frozen, training=training, shared_statistics=shared_statistics, wrt=wrt or None)
    for node in result.graph:
        if unbiased_running_var and (node.domain, node.op_type) == BATCH_NORM_INTERNAL:
            node.meta[UNBIASED] = True
    target = find_loss(result, loss)
    if not target.is_graph_output():
        result.graph.outputs.append(target)
    names = [str(value.name) for value in find_wrt(result, wrt, target)]
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
