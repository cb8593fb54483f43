"""From a forward model to a training graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx_ir.passes.common import RemoveUnusedNodesPass

from bngrad.autodiff.builder import add_gradients
from bngrad.autodiff.forward import make_inputs, prepare, running_statistics
from bngrad.autodiff.targets import find_loss, find_wrt
from bngrad.collector import without_collections
from bngrad.opset import DOMAIN
from bngrad.ort_dialect import MICROSOFT

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir


@without_collections()
def training_graph(
    model: ir.Model,
    *,
    loss: str | None = None,
    wrt: Sequence[str] | None = None,
    frozen: Sequence[str] = (),
    training: Sequence[str] = (),
) -> tuple[ir.Model, str]:
    """Returns a copy of a forward model with the gradients of a loss as further outputs, in ORT's dialect.

    The gradient of ``name`` is called ``name_grad``. Weights and running statistics become graph inputs whose
    values are their defaults; the new running statistics become outputs. Frozen batch norms, which ORT's dialect
    cannot say, are ops of ``bngrad``.

    Args:
        model: The forward model; it is not changed.
        loss: The name of a float scalar; by default the only one among the outputs.
        wrt: Names of inputs and initializers; by default the weights.
        frozen: Names of batch norms, or patterns, that are to use their running statistics.
        training: The same for those that are to use the batch's.

    Returns:
        The training graph, and the name of the loss.

    Raises:
        ModelError: A name is wrong, or the model cannot be differentiated.
        UnsupportedNodeError: Nodes on the way have no gradient.
    """
    result = prepare(model, frozen=frozen, training=training)
    target = find_loss(result, loss)
    if not target.is_graph_output():
        result.graph.outputs.append(target)
    names = [str(value.name) for value in find_wrt(result, wrt, target)]
    make_inputs(result.graph, [*find_wrt(result, names, target), *running_statistics(result.graph)])
    add_gradients(result, target, find_wrt(result, names, target))
    RemoveUnusedNodesPass()(result)
    for domain in {node.domain for node in result.graph} & {MICROSOFT, DOMAIN}:
        result.opset_imports.setdefault(domain, 1)
    return result, str(target.name)
