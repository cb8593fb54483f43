"""The training graph of one rank of a distributed run, which has some rows of the batch.

The rank's share of the loss is differentiated (`bngrad.autodiff.share_loss`), so that the sums of the gradients
over the ranks are the gradients of the whole batch. The state for the next call must be equal on all ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.autodiff.loss_and_wrt import reaching_values
from bngrad.errors import ModelError
from bngrad.graph.constant_value import RANDOM_OPS
from bngrad.graph.nodes import describe
from bngrad.graph.subgraphs import nodes_of, subgraphs
from bngrad.passes.distribute.collectives import is_collective
from bngrad.passes.distribute.reduce_gradients import ReduceGradientsPass
from bngrad.passes.distribute.synchronize_batch_norms import SynchronizeBatchNormsPass
from bngrad.training.separable_loss import check_separable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import onnx_ir as ir

    from bngrad.autodiff.training_graph import Training


_BATCH_NORMS = ("BatchNormInternal", "BatchNormalizationTraining")


def passes_of_a_rank(training: Training) -> list[ir.passes.PassBase]:
    """Returns the passes that turn the training graph of a rank's share of the loss into that of one rank.

    Raises:
        ModelError: A batch norm in training mode is in a body; the loss reads new running statistics, whose
            gradients would need an exchange of their own; or a gradient is with respect to an input without a
            value. The gradients with respect to weights are summed over the ranks, those with respect to data are
            not.
    """
    graph = training.model.graph
    for node in nodes_of(graph):
        if node.op_type in _BATCH_NORMS and node.graph is not graph:
            raise ModelError(
                f"{describe(node)} is in the body of another node, which the ranks may run differently; with "
                "--sync (sync=), expected it in the main graph: move it out of the body, or name it with --frozen "
                "(frozen=)"
            )
    loss = next(value for value in graph.outputs if value.name == training.loss)
    for value in reaching_values(loss, as_weights=True):
        maker = value.producer()
        if maker is not None and maker.op_type in _BATCH_NORMS and value.index():
            raise ModelError(
                f"the loss {training.loss!r} depends on the running statistics that {describe(maker)} updates; "
                "with --sync (sync=), expected a loss that depends only on its Y"
            )
    for name in training.gradients:
        if name not in graph.initializers:
            raise ModelError(
                f"{name!r}, which --wrt (wrt=) names, is an input without a value, so it may be data of one rank; "
                "with --sync (sync=), expected weights: store its value in the model"
            )
    return [SynchronizeBatchNormsPass(), ReduceGradientsPass(list(training.gradients.values()), training.loss)]


def check_ranks(
    model: ir.Model,
    graph: ir.Graph,
    training: Training,
    running: Mapping[str, str],
    state: Mapping[str, ir.TensorProtocol],
    *,
    in_primitives: bool,
) -> list[str]:
    """Checks that the ranks compute what one process would compute from the whole batch.

    Args:
        model: The forward model.
        graph: The training graph of a rank.
        training: The training graph that it was made from.
        running: See `require_equal_on_ranks`.
        state: The weights and running statistics, by name.
        in_primitives: Whether a batch norm was recognized in primitives, which have no inference mode.

    Returns:
        A warning about what could not be checked.

    Raises:
        ModelError: State would differ between ranks, or the loss depends on more than single samples.
    """
    require_equal_on_ranks(graph, training.gradients, running)
    unchecked: str | None = "a batch norm in primitives has no inference mode"
    if not in_primitives:
        unchecked = check_separable(model, {name: tensor.numpy() for name, tensor in state.items()}, training.loss)
    if unchecked is None:
        return []
    warning = (
        f"whether loss {training.loss!r} depends on more than single samples could not be checked ({unchecked}); "
        "the ranks of a distributed run compute the loss of the whole batch only if it does not, except in batch "
        "norms"
    )
    return [warning]


def require_equal_on_ranks(graph: ir.Graph, weights: Collection[str], running: Mapping[str, str]) -> None:
    """Refuses running statistics and buffers whose new values differ between ranks.

    Args:
        graph: The training graph of a rank.
        weights: The names of the inputs that are weights.
        running: The output with the new value of each running statistic or buffer, by the input that takes it.

    Raises:
        ModelError: A new value depends on data that only the rank has.
    """
    outputs = {str(value.name): value for value in graph.outputs}
    for name, new in running.items():
        data = _data_of_rank(graph, outputs[new], {*weights, *running})
        if data is not None:
            raise ModelError(
                f"the new value {new!r} of {name!r} depends on {data}, which differs between ranks; with --sync "
                "(sync=), expected state that depends on the batch only through batch norms"
            )


def _data_of_rank(graph: ir.Graph, value: ir.Value, state: Collection[str]) -> str | None:
    """Returns a source of a value that differs between ranks, not counting collectives; None if there is none."""
    seen, waiting = {value}, [value]
    inputs = set(graph.inputs)
    while waiting:
        current = waiting.pop()
        if current in inputs and current.name not in state and not current.is_initializer():
            return f"input {current.name!r}"
        node = current.producer()
        if node is None or is_collective(node):
            continue
        if node.op_type in RANDOM_OPS and not node.domain:
            return f"the random {describe(node)}"
        dependencies = [value for value in node.inputs if value is not None]
        for inner in (nested for graph in subgraphs(node) for nested in graph.all_nodes()):
            dependencies += [value for value in inner.inputs if value is not None]
        waiting += [value for value in dependencies if value not in seen]
        seen.update(dependencies)
    return None
