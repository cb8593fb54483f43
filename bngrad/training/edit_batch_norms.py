"""Edits of the batch norms of a forward model: mode, momentum, epsilon, ghost batches, and folding."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import onnx_ir as ir

from bngrad.autodiff.batch_norm_modes import matching
from bngrad.autodiff.control_flow.prepare import fold_branches
from bngrad.autodiff.forward_info import update_forward_info
from bngrad.autodiff.prepare_forward import reads_given, return_statistics
from bngrad.autodiff.running_statistics import is_of_onnx
from bngrad.errors import ModelError
from bngrad.graph.batch_norms import FROZEN, GHOST, is_per_element
from bngrad.graph.fresh_names import Names, node_names
from bngrad.graph.name_messages import unknown_name
from bngrad.graph.nodes import default_opset, describe, owner
from bngrad.passes.check import check
from bngrad.passes.prepare.infer_types import InferTypesPass
from bngrad.passes.prepare.old_batch_norms import TRAINING_MODE_OPSET
from bngrad.passes.prepare.raise_opset import raise_opset
from bngrad.passes.workarounds.present_keys import remove_unused_nodes
from bngrad.training.finalize import inlined_copy
from bngrad.training.fold_batch_norm import fold, type_constants
from bngrad.training.foldable_layer import NotFoldableError
from bngrad.training.restore_batch_norms import epsilon_in_float32
from bngrad.training.to_inference import batch_norm_to_inference

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from bngrad.training.batch_norm_options import BatchNormOptions


class EditedBatchNorms(NamedTuple):
    """A forward model with edited batch norms."""

    model: ir.Model
    batch_norms: list[str]
    """The edited batch norms."""
    folded: dict[str, str]
    """The layer that a batch norm was folded into, by the name of the batch norm."""
    kept: dict[str, str]
    """The reasons why batch norms that were not named cannot be folded, by their names."""


def edit_batch_norms(model: ir.Model, options: BatchNormOptions) -> EditedBatchNorms:
    """Returns a copy of a forward model without functions, with edited batch norms.

    Args:
        model: The forward model; it is not changed.
        options: See `bngrad.edit_batch_norms`.

    Raises:
        InputError: The epsilon is not a finite number above 0.
        ModelError: A name is unknown, a batch norm cannot be edited so, or the model is not a forward model.
    """
    epsilon = None if options.epsilon is None else epsilon_in_float32(options.epsilon)
    result = inlined_copy(model)
    fold_branches(result)
    if options.mode == "training":
        result = raise_opset(result, TRAINING_MODE_OPSET)
    InferTypesPass()(result)
    called = node_names(result)
    nodes = _selected(called, options.batch_norms)
    for node in nodes:
        _require_editable(result, node, options)
    names = Names(result)
    for node in nodes:
        if options.mode is not None:
            _set_mode(result, node, names, trains=options.mode == "training")
        for name, value in (("momentum", options.momentum), ("epsilon", epsilon)):
            if value is not None:
                node.attributes[name] = ir.AttrFloat32(name, float(value))
        if options.ghost is not None:
            node.metadata_props.pop(GHOST, None)
        if options.ghost:
            node.metadata_props[GHOST] = str(options.ghost)
    folded, kept = dict[str, str](), dict[str, str]()
    edited = [called[node] for node in nodes]
    if options.fold:
        type_constants(result.graph)
        folded, kept = _fold(nodes, called, names, options.batch_norms or ())
        _remove_unused(result)
    update_forward_info(result, new_weights=bool(folded))
    check(result, model)
    return EditedBatchNorms(result, edited, folded, kept)


def _selected(called: Mapping[ir.Node, str], patterns: Collection[str] | None) -> list[ir.Node]:
    """Returns the batch norms that names or patterns match, in the order of the nodes."""
    batch_norms = {node: name for node, name in called.items() if is_of_onnx(node)}
    if not batch_norms:
        raise ModelError(
            "the model has no BatchNormalization; bngrad inspect lists batch norms in primitives and of other "
            "systems"
        )
    selected: set[ir.Node] = set()
    for pattern in batch_norms.values() if patterns is None else patterns:
        matches = matching(batch_norms, pattern)
        if not matches:
            raise ModelError(unknown_name(pattern, batch_norms.values(), "a batch norm"))
        selected |= matches
    return [node for node in batch_norms if node in selected]


def _require_editable(model: ir.Model, node: ir.Node, options: BatchNormOptions) -> None:
    """Refuses a batch norm that cannot be trained so.

    Raises:
        ModelError: It has statistics of each element, its running statistics are computed, or it is to have ghost
            batches in the body of another node.
    """
    edit = "put into training mode" if options.mode == "training" else "given ghost batches"
    if options.mode != "training" and not options.ghost:
        return
    reason = None
    if node.graph is not model.graph and options.ghost:
        edit, reason = "given ghost batches", "it is in the body of another node; expected one of the main graph"
    elif is_per_element(node):
        reason = "it has spatial = 0, with statistics of each element"
    elif not reads_given(node, model.graph):
        reason = "its running statistics are computed from data or weights"
    if reason:
        raise ModelError(f"{describe(node)} cannot be {edit}: {reason}")


def _set_mode(model: ir.Model, node: ir.Node, names: Names, *, trains: bool) -> None:
    """Sets the mode of a batch norm, which then has the outputs of that mode."""
    node.metadata_props.pop(FROZEN, None)
    if trains:
        node.attributes["training_mode"] = ir.AttrInt64("training_mode", 1)
        return_statistics(model.graph, node, names)
        return
    outputs = owner(node).outputs
    running = node.outputs[1:3]
    outputs[:] = [value for value in outputs if value not in running]
    batch_norm_to_inference(node, default_opset(model) or 0, names)
    node.metadata_props[FROZEN] = "1"


def _fold(
    nodes: list[ir.Node], called: Mapping[ir.Node, str], names: Names, patterns: Collection[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Folds batch norms; returns the layers, and the reasons of those that stay, by the names of batch norms."""
    folded, kept = {}, {}
    for node in nodes:
        name, described = called[node], describe(node)
        try:
            folded[name] = called[fold(node, name, names)]
        except NotFoldableError as error:
            if name in patterns:
                raise ModelError(f"{described} cannot be folded: {error}") from None
            kept[name] = str(error)
    if not folded:
        name, reason = next(iter(kept.items()))
        raise ModelError(f"none of {len(kept)} batch norms can be folded; {name!r}: {reason}")
    return folded, kept


def _remove_unused(model: ir.Model) -> None:
    """Removes unused nodes and initializers, also those that are inputs."""
    graph = model.graph
    defaults = [value for value in graph.inputs if value.is_initializer()]
    remove_unused_nodes(model)
    for value in defaults:
        if not value.uses() and not value.is_graph_output():
            graph.inputs.remove(value)
            graph.initializers.pop(str(value.name), None)
