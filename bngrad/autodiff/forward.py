"""What is done to a forward model before it is differentiated.

Functions are inlined, the opset is raised, every value gets its type, and every batch norm becomes what it is to
be in training: BatchNormInternal, which saves its statistics, or a BatchNormalization that is frozen. TensorFlow's
becomes what `rewrite` makes of it: a BatchNormalizationTraining of ours in training mode, else arithmetic.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.autodiff.fold_affine import fold_affine
from bngrad.autodiff.weights import readers
from bngrad.errors import ModelError
from bngrad.names import unknown_name
from bngrad.opset import DOMAIN, FUNCTIONS, VERSION
from bngrad.ort_dialect import BATCH_NORM_INTERNAL
from bngrad.passes.constants import Names, NodeNames
from bngrad.passes.import_tensorflow import ImportTensorflowPass
from bngrad.passes.infer_types import InferTypesPass, require_possible
from bngrad.passes.inline_functions import inline
from bngrad.passes.nodes import ORIGIN, all_nodes, describe, parameter_refusal, refuse_training_graph
from bngrad.passes.raise_opset import RaiseOpsetPass
from bngrad.passes.tensorflow.node import FORWARDS, is_training, keeps_statistics
from bngrad.passes.unknown_rank import collapse_spatial

if TYPE_CHECKING:
    from collections.abc import Sequence

_OURS = (DOMAIN, "BatchNormalizationTraining")

_NEW_STATISTICS = "bngrad.new_statistics"
"""The key of `ir.Model.meta` that has the names of new running statistics by those of the old."""

OPSET = 18
"""What a forward model is raised to: since it, every op takes axes as an input."""


def prepare(model: ir.Model, *, frozen: Sequence[str] = (), training: Sequence[str] = ()) -> ir.Model:
    """Returns a copy of a forward model that the builder can walk through.

    Args:
        model: The forward model.
        frozen: Names of batch-norm nodes, or patterns such as ``layer1.*``, that use their running statistics;
            the others do what their attribute training_mode says.
        training: The same for those that use the batch's statistics.

    Raises:
        ModelError: It is a training graph, its opset cannot be raised, a pattern matches no batch norm, or its
            shapes cannot be.
    """
    refuse_training_graph(model)
    if model.functions:
        model = model.clone()
        for name in FUNCTIONS:  # the definitions of our own ops, which have gradients as they are
            model.functions.pop((DOMAIN, name, ""), None)
        inline(model)
    model = RaiseOpsetPass(OPSET)(model).model
    name_nodes(model)
    set_modes(model, frozen, training)
    _import_tensorflow(model)
    names = Names(model)
    for node in model.graph:
        if (node.domain, node.op_type) == _OURS:
            _return_kept_statistics(model.graph, node, names)
    for node in _batch_norms(model.graph):
        # Shape inference takes a batch norm with the number of outputs that its mode has, and no other.
        if _in_training_mode(node):
            _return_statistics(model.graph, node, names)
        else:
            if any(_moves_with_a_weight(value) for value in node.inputs[3:5]):
                _own_statistics(model.graph, node, names)
            _freeze(node)
    InferTypesPass()(model)
    require_possible(model)
    _refuse_wrong_parameters(model.graph)
    if _reshape_to_channels(model.graph, names):
        InferTypesPass()(model)
    fold_affine(model.graph, names)
    for node in filter(_in_training_mode, _batch_norms(model.graph)):
        _save_statistics(node, names)
    return model


def name_nodes(model: ir.Model) -> None:
    """Gives every node without a name that of its first output: it is what errors and patterns can call it by."""
    names = NodeNames(model)
    for node in all_nodes(model):
        if not node.name:
            node.name = names.fresh(next((value.name for value in node.outputs if value.name), node.op_type))


def make_inputs(graph: ir.Graph, values: Sequence[ir.Value]) -> None:
    """Makes graph inputs of initializers and constants, whose values become their defaults.

    A training loop feeds them; and ORT merges equal initializers that are no inputs, which a batch norm of its own
    then writes into.
    """
    for value in values:
        node = value.producer()
        if node is not None:
            _lift(graph, node, value)
        elif not value.is_graph_input():
            graph.inputs.append(value)


def running_statistics(model: ir.Model) -> list[ir.Value]:
    """The running statistics that training-mode batch norms read, those that are initializers or inputs."""
    return list(new_statistics(model))


def new_statistics(model: ir.Model) -> dict[ir.Value, ir.Value]:
    """The new running statistics of every training-mode batch norm, by the old: initializers or inputs."""
    graph = model.graph
    nodes = [node for node in graph if (node.domain, node.op_type) in (BATCH_NORM_INTERNAL, _OURS)]
    pairs = [pair for node in nodes for pair in zip(node.inputs[3:5], node.outputs[1:3], strict=True)]
    found = {old: new for old, new in pairs if old is not None and old.producer() is None and new.name}
    given = {value.name: value for value in (*graph.inputs, *graph.initializers.values())}
    outputs = {value.name: value for value in graph.outputs}
    named = model.meta.get(_NEW_STATISTICS, {})
    return found | {given[old]: outputs[new] for old, new in named.items()}


def _lift(graph: ir.Graph, node: ir.Node, value: ir.Value) -> None:
    tensor = ir.convenience.get_const_tensor(value)
    new = ir.Value(name=value.name, type=value.type, shape=value.shape, const_value=tensor)
    value.name = None
    value.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    graph.register_initializer(new)
    graph.inputs.append(new)


def set_modes(model: ir.Model, frozen: Sequence[str], training: Sequence[str]) -> None:
    """Puts batch norms of the main graph into a mode, by the names of their nodes or patterns of them.

    Raises:
        ModelError: A pattern matches none.
    """
    nodes = [node for node in model.graph if _is_onnx(node) or _is_of_tensorflow(node)]
    batch_norms = [(str(node.name), node) for node in nodes]
    for mode, patterns in ((0, frozen), (1, training)):
        for pattern in patterns:
            found = [node for name, node in batch_norms if fnmatchcase(name, pattern)]
            if not found:
                raise ModelError(unknown_name(pattern, dict(batch_norms), "a batch norm"))
            for node in found:
                attribute = "training_mode" if _is_onnx(node) else "is_training"
                node.attributes[attribute] = ir.AttrInt64(attribute, mode)


def _batch_norms(graph: ir.Graph) -> list[ir.Node]:
    return [node for node in graph if _is_onnx(node)]


def _is_onnx(node: ir.Node) -> bool:
    return (node.domain, node.op_type) == ("", "BatchNormalization")


def _is_of_tensorflow(node: ir.Node) -> bool:
    return node.op_type in FORWARDS and node.domain != DOMAIN


def _refuse_wrong_parameters(graph: ir.Graph) -> None:
    """Sees to it that every batch norm has parameters of one number for each channel.

    Raises:
        ModelError: One has not.
    """
    for node in _batch_norms(graph):
        if node.inputs and (reason := parameter_refusal(node, data=(0,))):
            raise ModelError(f"{describe(node)} is not valid: {reason}")


def _reshape_to_channels(graph: ir.Graph, names: Names) -> bool:
    """Gives the data of a batch norm a dimension of channels where its rank is 1, or a rule has to know it."""
    found = [n for n in _batch_norms(graph) if (x := n.inputs[0]) is not None and _lacks_channels(n, x)]
    for node in found:
        described = describe(node)
        collapse_spatial(node, [0], [0], names)
        node.meta[ORIGIN] = described
    return bool(found)


def _lacks_channels(node: ir.Node, x: ir.Value) -> bool:
    return not _in_training_mode(node) if x.shape is None else len(x.shape) == 1


def _in_training_mode(node: ir.Node) -> bool:
    # Below opset 14, which has no such attribute, one of that name may be anything.
    attribute = node.attributes.get("training_mode")
    return attribute is not None and attribute.type == ir.AttributeType.INT and bool(attribute.value)


def _return_statistics(graph: ir.Graph, node: ir.Node, names: Names) -> None:
    """Makes the new running statistics of a batch norm in training mode outputs of the graph."""
    _own_statistics(graph, node, names)
    node.resize_outputs(3)
    for value, old in zip(node.outputs[1:], node.inputs[3:5], strict=True):
        assert old is not None, "a batch norm has running statistics"  # noqa: S101
        value.name = value.name or names.fresh(f"{old.name}_new")
        value.type, value.shape = old.type, old.shape
        if not value.is_graph_output():
            graph.outputs.append(value)


def _return_kept_statistics(graph: ir.Graph, node: ir.Node, names: Names) -> list[tuple[ir.Value, ir.Value]]:
    """The same for a batch norm of another kind: for those statistics that it keeps from step to step.

    Returns:
        The old ones, which are initializers or inputs, with the new.
    """
    if len(node.inputs) < 5:  # malformed, which is told when it is rewritten or differentiated
        return []
    _own_statistics(graph, node, names)
    node.resize_outputs(max(3, len(node.outputs)))
    pairs = zip(node.inputs[3:5], node.outputs[1:3], strict=True)
    kept = [(old, new) for old, new in pairs if old is not None and old.producer() is None]
    for old, new in kept:
        new.name = new.name or names.fresh(f"{old.name}_new")
        new.type, new.shape = new.type or old.type, new.shape or old.shape
        if not new.is_graph_output():
            graph.outputs.append(new)
    return kept


def _import_tensorflow(model: ir.Model) -> None:
    """Rewrites TensorFlow's batch norms; which new statistic is whose is told by names from then on."""
    nodes = [node for node in model.graph if _is_of_tensorflow(node)]
    if not any(map(ImportTensorflowPass().matches, all_nodes(model))):
        return
    names = Names(model)
    keeping = [node for node in nodes if is_training(node) and keeps_statistics(node)]
    pairs = [pair for node in keeping for pair in _return_kept_statistics(model.graph, node, names)]
    model.meta[_NEW_STATISTICS] = {str(old.name): str(new.name) for old, new in pairs}
    InferTypesPass()(model)
    ImportTensorflowPass()(model)
    model.opset_imports.setdefault(DOMAIN, VERSION)  # without it nothing tells the types of our ops


def _save_statistics(node: ir.Node, names: Names) -> None:
    """BatchNormalization -> BatchNormInternal, which saves the batch's statistics for the way back."""
    node.meta[ORIGIN] = describe(node)
    node.domain, node.op_type = BATCH_NORM_INTERNAL
    node.version = None
    node.resize_outputs(5)
    running = node.outputs[1:3]
    for value, old, what in zip(node.outputs[3:], running, ("saved_mean", "saved_inv_std"), strict=True):
        value.name = names.fresh(f"{node.name}_{what}")
        value.type, value.shape = old.type, old.shape


def _own_statistics(graph: ir.Graph, node: ir.Node, names: Names) -> None:
    """Gives a batch norm running statistics that nothing else reads, as initializers.

    Exporters write equal initializers once, with an Identity for every other user; fed back after a step, each
    batch norm has its own.
    """
    for index, what in ((3, "running_mean"), (4, "running_var")):
        value = source = node.inputs[index]
        while source is not None and (maker := source.producer()) is not None and maker.op_type == "Identity":
            source = maker.inputs[0]
        tensor = None if source is None else ir.convenience.get_const_tensor(source)
        if source is None or tensor is None:
            continue
        if source is value and source.is_initializer() and len(source.uses()) == 1:
            continue
        name = names.fresh(f"{node.name}/{what}")
        # A tensor of its own: a value gives its name to its tensor, which may be the caller's.
        copy = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=name)
        own = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=copy.shape, const_value=copy)
        graph.register_initializer(own)
        node.replace_input_with(index, own)


def _moves_with_a_weight(statistic: ir.Value | None) -> bool:
    """Whether something else than a batch norm's statistic reads the same initializer: it is trained."""
    source = statistic
    while source is not None and (maker := source.producer()) is not None and maker.op_type == "Identity":
        source = maker.inputs[0]
    return (
        source is not None
        and source.is_initializer()
        and any(node.op_type != "BatchNormalization" or index not in (3, 4) for node, index in readers(source))
    )


def _freeze(node: ir.Node) -> None:
    """Leaves one output: what a frozen batch norm gives for its running statistics is what it was given."""
    for value, old in zip(node.outputs[1:], node.inputs[3:5], strict=False):
        if not value.name:
            continue
        graph = node.graph
        assert graph is not None, "it is in the main graph"  # noqa: S101
        copy = ir.node("Identity", [old], name=f"{node.name}_{value.name}")
        ir.convenience.replace_nodes_and_values(graph, node, [], [copy], [value], copy.outputs)
    node.resize_outputs(1)
    node.attributes["training_mode"] = ir.AttrInt64("training_mode", 0)
