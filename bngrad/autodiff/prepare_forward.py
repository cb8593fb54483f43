"""Prepares a forward model for differentiation.

Functions are inlined, the opset is raised, types are inferred, and every batch norm takes its form in training:
BatchNormInternal, which saves its statistics, or a frozen BatchNormalization. TensorFlow's batch norms take the
form that `rewrite` gives them: BatchNormalizationTraining of ``bngrad`` in training mode, else arithmetic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.autodiff.batch_norm_modes import (
    chosen_modes,
    folded_in_training_mode,
    put_in_training_mode,
    refuse_folded,
    refuse_unknown_modes,
)
from bngrad.autodiff.body_statistics import NEW_NAME, require_trainable
from bngrad.autodiff.chosen_stops import with_chosen_stops
from bngrad.autodiff.control_flow.body_types import infer_bodies
from bngrad.autodiff.control_flow.prepare import fold_branches
from bngrad.autodiff.dependence import moving_values, reaching
from bngrad.autodiff.expansion import expand
from bngrad.autodiff.ghost_batches import split_batch, with_ghost_batches
from bngrad.autodiff.loss_and_wrt import default_losses
from bngrad.autodiff.new_statistics import NEW_STATISTICS, ends, updates
from bngrad.autodiff.recorded_stops import refuse_hidden_stops, with_recorded_stops
from bngrad.autodiff.running_statistics import (
    find_statistics,
    is_given,
    is_of_onnx,
    is_of_tensorflow,
    is_ours,
    is_statistic,
    is_updated,
)
from bngrad.autodiff.separate_statistics import chain_statistics, separate_statistics
from bngrad.autodiff.stop_gradient import DOMAIN as STOP_DOMAIN
from bngrad.autodiff.stop_gradient import NAME as STOP_NAME
from bngrad.autodiff.straight_through import stop_roundings
from bngrad.autodiff.torch_gradients import with_torch_gradients
from bngrad.autodiff.torch_numbers import with_torch_numbers
from bngrad.autodiff.weights import default_weights
from bngrad.errors import UnsupportedNodeError
from bngrad.graph.batch_norms import require_parameters
from bngrad.graph.constant_value import lift_constant
from bngrad.graph.fresh_names import Names, node_names
from bngrad.graph.nodes import ORIGIN, all_nodes, describe, refuse_training_graph
from bngrad.graph.pool_windows import windows_beyond
from bngrad.graph.same_values import origin
from bngrad.graph.subgraphs import nodes_of
from bngrad.graph.torch_records import recorded_mode
from bngrad.opset.functions import DOMAIN, FUNCTIONS
from bngrad.opset.ort_dialect import BATCH_NORM_INTERNAL
from bngrad.opset.overloaded import WITHOUT_OVERLOAD
from bngrad.options import AUTO
from bngrad.passes.imports.decomposed.recognize import ImportDecomposedPass
from bngrad.passes.imports.tensorflow.fused_batch_norm import ImportTensorflowPass
from bngrad.passes.imports.tensorflow.node import is_training, keeps_statistics
from bngrad.passes.imports.unknown_rank import collapse_spatial
from bngrad.passes.optimize.fold_affine import FoldAffinePass
from bngrad.passes.prepare.infer_types import InferTypesPass, require_possible
from bngrad.passes.prepare.inline_functions import inline
from bngrad.passes.prepare.loop_sequences import gather_sequences
from bngrad.passes.prepare.raise_opset import RaiseOpsetPass
from bngrad.passes.prepare.resolve_sequences import resolve_sequences
from bngrad.passes.prepare.split_sequences import drop_single_splits
from bngrad.passes.prepare.stable_logs import StableLogsPass
from bngrad.passes.prepare.time_first import put_time_first

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.autodiff.running_statistics import Statistic
    from bngrad.options import ForwardOptions, SharedStatistics

OPSET = 18
"""The opset of a prepared model: from 18 on, every reduction takes its axes as an input."""


def prepare(model: ir.Model, options: ForwardOptions, opset: int = OPSET) -> ir.Model:
    """Returns a copy of a forward model that `add_gradients` can differentiate.

    Args:
        model: The forward model.
        options: The modes of the batch norms, see `set_modes`, and the weights. Values that are not weights may be
            constants of a batch norm in primitives.
        opset: The opset of the copy, if that of the model is older.

    Raises:
        ModelError: The model is a training graph, its opset cannot be raised, its modes cannot be set, or its
            shapes are impossible.
    """
    wrt = options.wrt or None
    model, names = with_modes(model, opset, options)
    if not options.straight_through:
        stop_roundings(model)
    _import_tensorflow(model)
    put_time_first(model.graph, names)
    drop_single_splits(model)
    InferTypesPass()(model)
    expand(model, default_weights(model.graph) if wrt is None else _values(model.graph, wrt))
    while _resolve_sequences(model, options, names) or fold_branches(model):
        InferTypesPass()(model)
    infer_bodies(model)
    if resolve_sequences(model.graph, names):  # in bodies, whose types are complete now
        infer_bodies(model)
    require_possible(model)
    _refuse_windows_beyond(model)
    StableLogsPass(names)(model)
    require_parameters(model)
    graph = model.graph
    weights = default_weights(graph) if wrt is None else [v for v in graph.initializers.values() if v.name in wrt]
    ImportDecomposedPass(kept=weights, forward_only=True)(model)
    if _reshape_to_channels(model.graph, names):
        InferTypesPass()(model)
    FoldAffinePass(names)(model)
    trained = [node for node in nodes_of(graph) if is_of_onnx(node) and is_trained(node)]
    ghosts = with_ghost_batches(trained)
    if ghosts:
        _relate_statistics(model, trained)
        for node in ghosts:
            split_batch(node, names, unbiased=options.unbiased)
        InferTypesPass()(model)
    for node in trained:
        if node not in ghosts:
            _save_statistics(node, names)
    return model


def _resolve_sequences(model: ir.Model, options: ForwardOptions, names: Names) -> bool:
    """Resolves sequences, also those to which loops append where the loss depends on weights through the loops."""
    graph = model.graph
    if resolve_sequences(graph, names):
        return True
    if not any((node.domain, node.op_type) == ("", "SequenceInsert") for node in nodes_of(graph)):
        return False
    weights = _values(graph, options.wrt) if options.wrt else default_weights(graph)
    named = [value for node in graph for value in node.outputs if value.name and value.name == options.loss]
    losses = named or default_losses(model) or graph.outputs
    return gather_sequences(graph, names, reaching(losses, moving_values(graph, weights)))


def _values(graph: ir.Graph, names: Sequence[str]) -> list[ir.Value]:
    """Returns the inputs and initializers of some names."""
    return [value for value in (*graph.inputs, *graph.initializers.values()) if value.name in names]


def _refuse_windows_beyond(model: ir.Model) -> None:
    for node in all_nodes(model):
        if reason := windows_beyond(node):
            raise UnsupportedNodeError(f"{describe(node)} cannot be differentiated: {reason}")


def with_modes(model: ir.Model, opset: int, options: ForwardOptions) -> tuple[ir.Model, Names]:
    """Returns a copy of a forward model without functions, and the source of further names.

    Every node has a name, and every batch norm its mode, its own running statistics and the outputs of its mode.

    Raises:
        ModelError: The model is a training graph, its opset cannot be raised, or its modes cannot be set.
    """
    refuse_training_graph(model)
    refuse_hidden_stops(model)
    model = with_chosen_stops(model, options.stop_gradient)
    model = with_torch_numbers(with_torch_gradients(RaiseOpsetPass(opset)(inlined(model)).model))
    fold_branches(model)
    names = Names(model)
    statistics = find_statistics(model, names)
    name_nodes(model)
    set_modes(model, options.frozen, options.training)
    require_trainable(model.graph, statistics, is_trained)
    give_own_statistics(model.graph, statistics, options.shared_statistics)
    for node in list(nodes_of(model.graph)):
        # Shape inference accepts a batch norm only with the number of outputs of its mode.
        if is_trained(node):
            return_statistics(model.graph, node, names)
        elif is_of_onnx(node):
            _freeze(node)
    return model, names


def give_own_statistics(
    graph: ir.Graph, statistics: Sequence[Statistic], shared_statistics: SharedStatistics | None
) -> None:
    """Gives each batch norm in training mode running statistics that nothing else reads.

    Raises:
        ModelError: By default, a batch norm reads statistics that are updated in the same pass.
    """
    if shared_statistics == "separate":
        separate_statistics(graph, statistics, is_trained)
    else:
        chain_statistics(graph, statistics, is_trained, recorded_only=shared_statistics is None)


def inlined(model: ir.Model) -> ir.Model:
    """Returns a model without functions: itself, or a copy in which every call is inlined.

    Ops of ``bngrad`` and StopGradient stay. Stops that an exporter recorded become StopGradient.

    Raises:
        ModelError: A function's opset imports, or the arguments of a call, do not match.
    """
    model = with_recorded_stops(model)
    if not model.functions:
        return model
    model = model.clone()
    for name in (*FUNCTIONS, *WITHOUT_OVERLOAD):  # the definitions of the ops of bngrad, which have gradient rules
        model.functions.pop((DOMAIN, name, ""), None)
    model.functions.pop((STOP_DOMAIN, STOP_NAME, ""), None)
    inline(model)
    return model


def name_nodes(model: ir.Model) -> None:
    """Names every unnamed node after its first output, for error messages and patterns."""
    for node, name in node_names(model).items():
        node.name = name


def make_inputs(graph: ir.Graph, values: Sequence[ir.Value]) -> None:
    """Converts initializers and constants to graph inputs, with their values as defaults.

    A training loop feeds them. ORT also merges equal initializers that are not inputs, and its batch norm then
    overwrites them in place.
    """
    for value in values:
        source = value if value.producer() is None else lift_constant(graph, value)
        if not source.is_graph_input():
            graph.inputs.append(source)


def set_modes(model: ir.Model, frozen: Sequence[str], training: Sequence[str]) -> None:
    """Sets the mode of batch norms, by the names of their nodes or patterns.

    Batch norms that neither option matches, and that PyTorch's exporter wrote in inference mode but records to
    have been in training mode, go back to training mode.

    Raises:
        ModelError: A pattern matches no batch norm; both options match one and neither is narrower; batch norms in
            training mode were folded into layers; or ``training`` has ``auto``, and the mode of a batch norm is
            not recorded.
    """
    called, graph = node_names(model), model.graph
    batch_norms = [node for node in nodes_of(graph) if is_of_onnx(node) or is_of_tensorflow(node)]
    folded = folded_in_training_mode(graph)
    modes = chosen_modes({node: called[node] for node in (*batch_norms, *folded)}, frozen, training)
    refuse_folded(folded, modes)
    left = [node for node in batch_norms if is_of_onnx(node) and node not in modes and not is_trained(node)]
    left = [node for node in left if reads_given(node, graph)]
    if AUTO in training:
        refuse_unknown_modes([node for node in left if recorded_mode(node) is None])
    modes |= dict.fromkeys(put_in_training_mode(left), 1)
    for node in batch_norms:
        if node in modes:
            attribute = "training_mode" if is_of_onnx(node) else "is_training"
            node.attributes[attribute] = ir.AttrInt64(attribute, modes[node])


def reads_given(node: ir.Node, graph: ir.Graph) -> bool:
    """Returns whether a batch norm's running mean is an input or a constant, and not computed from the data.

    Args:
        node: The batch norm.
        graph: The main graph; an input of a body is no input of the model.
    """
    mean = node.inputs[3] if len(node.inputs) > 3 else None
    source = None if mean is None else origin(mean)
    return source is not None and is_given(source) and (not source.is_graph_input() or source.graph is graph)


def _reshape_to_channels(graph: ir.Graph, names: Names) -> bool:
    """Reshapes the data of batch norms of rank 1, and of frozen ones of unknown rank, to [N, C, S]."""
    batch_norms = filter(is_of_onnx, nodes_of(graph))
    nodes = [node for node in batch_norms if (x := node.inputs[0]) is not None and _lacks_channels(node, x)]
    for node in nodes:
        described = describe(node)
        collapse_spatial(node, [0], [0], names)
        node.meta[ORIGIN] = described
    return bool(nodes)


def _lacks_channels(node: ir.Node, x: ir.Value) -> bool:
    return not is_trained(node) if x.shape is None else len(x.shape) == 1


def is_trained(node: ir.Node) -> bool:
    """Returns whether a node is a batch norm that updates its running statistics."""
    if is_of_tensorflow(node):
        return len(node.inputs) > 4 and is_training(node) and keeps_statistics(node)
    if not is_of_onnx(node):
        return is_ours(node)
    # Below opset 14 the op has no such attribute, and one of that name may have any type.
    attribute = node.attributes.get("training_mode")
    return attribute is not None and attribute.type == ir.AttributeType.INT and bool(attribute.value)


def return_statistics(graph: ir.Graph, node: ir.Node, names: Names) -> None:
    """Adds the new running statistics of a batch norm in training mode to the outputs of the graph.

    Statistics that the next batch norm of a chain reads stay internal unless the model outputs them. So do
    statistics of batch norms in bodies, and those of other systems' batch norms that are computed from something
    other than an input.
    """
    node.resize_outputs(max(3, len(node.outputs)))
    for value, old in zip(node.outputs[1:3], node.inputs[3:5], strict=True):
        if old is None or not (is_of_onnx(node) or is_given(old) or is_updated(old)):
            continue
        value.name = value.name or names.fresh(f"{old.name}_new")
        value.type, value.shape = old.type or value.type, old.shape or value.shape
        of_body = node.graph is not graph or NEW_NAME in old.meta
        is_internal = of_body or any(is_statistic(*use) for use in value.uses())
        if not value.is_graph_output() and not is_internal:
            graph.outputs.append(value)


def _import_tensorflow(model: ir.Model) -> None:
    """Rewrites TensorFlow's batch norms; from then on names relate old and new statistics."""
    if not any(map(ImportTensorflowPass().matches, all_nodes(model))):
        return
    keeping = [node for node in model.graph if is_of_tensorflow(node) and is_trained(node)]
    _relate_statistics(model, keeping)
    InferTypesPass()(model)
    ImportTensorflowPass()(model)


def _relate_statistics(model: ir.Model, nodes: Sequence[ir.Node]) -> None:
    """Records the names of the old and new statistics of batch norms that get another form."""
    make_inputs(model.graph, [old for old in updates(nodes) if is_given(old)])
    pairs = {str(old.name): str(new.name) for old, new in ends(updates(nodes)).items()}
    model.meta[NEW_STATISTICS] = {**model.meta.get(NEW_STATISTICS, {}), **pairs}


def _save_statistics(node: ir.Node, names: Names) -> None:
    """Converts a BatchNormalization to BatchNormInternal, which saves its statistics for the backward pass."""
    node.meta[ORIGIN] = describe(node)
    node.domain, node.op_type = BATCH_NORM_INTERNAL
    node.version = None
    node.resize_outputs(5)
    running = node.outputs[1:3]
    for value, old, suffix in zip(node.outputs[3:], running, ("saved_mean", "saved_inv_std"), strict=True):
        value.name = names.fresh(f"{node.name}_{suffix}")
        value.type, value.shape = old.type, old.shape


def _freeze(node: ir.Node) -> None:
    """Removes the outputs after the first: a frozen batch norm does not change its running statistics."""
    for value, old in zip(node.outputs[1:], node.inputs[3:5], strict=False):
        if not value.name:
            continue
        graph = node.graph
        assert graph is not None, "it is in a graph"  # noqa: S101
        copy = ir.node("Identity", [old], name=f"{node.name}_{value.name}")
        ir.convenience.replace_nodes_and_values(graph, node, [], [copy], [value], copy.outputs)
    node.resize_outputs(1)
    node.attributes["training_mode"] = ir.AttrInt64("training_mode", 0)
