"""The user's forward model in float64, a reference that is independent of how `differentiate` prepares models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import onnx_ir as ir

from bngrad.autodiff.body_statistics import return_statistics_of_bodies
from bngrad.autodiff.chosen_stops import with_chosen_stops
from bngrad.autodiff.dependence import moving_values
from bngrad.autodiff.ghost_batches import split_batch, with_ghost_batches
from bngrad.autodiff.prepare_forward import OPSET, is_trained, make_inputs, name_nodes, set_modes
from bngrad.autodiff.recorded_stops import with_recorded_stops
from bngrad.autodiff.running_statistics import find_statistics, has_recorded_chain
from bngrad.autodiff.separate_statistics import chain_statistics
from bngrad.autodiff.stop_gradient import stop_nodes, stops_to_identity
from bngrad.autodiff.straight_through import is_quantizer
from bngrad.errors import ModelError, UnsupportedNodeError
from bngrad.graph.batch_norms import is_training_batch_norm
from bngrad.graph.fresh_names import Names
from bngrad.graph.nodes import all_nodes, default_opset, describe
from bngrad.passes.prepare.inline_functions import inline
from bngrad.passes.prepare.old_batch_norms import TRAINING_MODE_OPSET
from bngrad.passes.prepare.raise_opset import RaiseOpsetPass
from bngrad.validation.float64 import EvaluationError, Evaluator
from bngrad.validation.training_ops import REDEFINED_SINCE
from bngrad.validation.unbiased import unbias_running_variances

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from bngrad.options import ForwardOptions

    Array = NDArray[Any]


class Forward(NamedTuple):
    """A forward model in float64."""

    evaluator: Evaluator
    """Its inputs include all values that the loss is differentiated with respect to."""
    outputs: frozenset[str]
    """The names of the model's outputs."""
    note: str
    """The changes with which the model can be evaluated; empty if there are none."""
    hidden: str = ""
    """The first effect on gradients that differences of the loss do not show; empty if there is none."""


def forward_of(
    model: ir.Model,
    feeds: Mapping[str, Array],
    wrt: Iterable[str],
    loss: str,
    options: ForwardOptions,
) -> Forward:
    """Converts a forward model for evaluation: weights become inputs, and batch norms get their modes.

    The model keeps its opset if it can be evaluated at it; else the opset is raised, as `differentiate` does.

    Args:
        model: The forward model, with its tensors in memory. It is not modified.
        feeds: The inputs to evaluate it for; names that are not inputs are ignored.
        wrt: Names of inputs, initializers or constants of the main graph.
        loss: The name of the loss.
        options: The modes of the batch norms, and how they update running statistics.

    Raises:
        UnsupportedNodeError: An op is not implemented or the evaluation fails, also at the raised opset.
    """
    own = with_recorded_stops(with_chosen_stops(model, options.stop_gradient)).clone()
    stops = [f"{describe(node)} stops" for node in stop_nodes(own)]
    stops_to_identity(own)
    if own.functions:
        inline(own)
    trains = bool(options.training) or any(map(is_training_batch_norm, all_nodes(own)))
    if trains and (default_opset(own) or 0) < TRAINING_MODE_OPSET:
        own = RaiseOpsetPass(TRAINING_MODE_OPSET)(own).model
    name_nodes(own)
    stops += [f"{describe(node)} rounds" for node in _roundings(own, wrt)]
    set_modes(own, options.frozen, options.training)
    shared_statistics = options.shared_statistics
    if shared_statistics == "chain" or (shared_statistics is None and has_recorded_chain(own)):
        chain_statistics(
            own.graph, find_statistics(own, Names(own)), is_trained, recorded_only=shared_statistics is None
        )
    return_statistics_of_bodies(own, [node for node in all_nodes(own) if is_trained(node)])
    if any(map(is_trained, with_ghost_batches(own.graph))):
        own = RaiseOpsetPass(OPSET)(own).model
        names = Names(own)
        for node in filter(is_trained, with_ghost_batches(own.graph)):
            split_batch(node, names, unbiased=options.unbiased)
    if options.unbiased:
        unbias_running_variances(own.graph)
    outputs = frozenset(str(value.name) for value in model.graph.outputs)
    try:
        result = _with_inputs(own, wrt, outputs, "")
        result.evaluator.from_any(feeds, [loss])
    except (UnsupportedNodeError, EvaluationError) as error:
        try:
            raised = RaiseOpsetPass(OPSET)(own).model
            note = f"the forward model was raised to opset {OPSET} for the evaluation in float64: it {error}"
            result = _with_inputs(raised, wrt, outputs, note)
            result.evaluator.from_any(feeds, [loss])
        except ModelError:
            raise UnsupportedNodeError(str(error)) from None
    return result._replace(hidden=next((f"what {text}" for text in stops), ""))


def _roundings(model: ir.Model, wrt: Iterable[str]) -> Iterator[ir.Node]:
    """Yields the nodes that round what depends on some values."""
    quantizers = [node for node in all_nodes(model) if is_quantizer(node)]
    if quantizers:
        names, graph = set(wrt), model.graph
        values = (*graph.inputs, *graph.initializers.values(), *(v for node in graph for v in node.outputs))
        moving = moving_values(graph, [value for value in values if value.name in names])
        yield from (node for node in quantizers if node.inputs[0] in moving)


def _with_inputs(model: ir.Model, wrt: Iterable[str], outputs: frozenset[str], note: str) -> Forward:
    opset = default_opset(model) or 0
    for node in all_nodes(model):
        if node.domain == "" and opset < (since := REDEFINED_SINCE.get(node.op_type, 0)):
            raise UnsupportedNodeError(f"has a {node.op_type} below opset {since}, which has other semantics")
    names = set(wrt)
    constants = {str(value.name): value for node in model.graph for value in node.outputs if value.name in names}
    values = {str(value.name): value for value in (*model.graph.inputs, *model.graph.initializers.values())}
    values |= constants
    make_inputs(model.graph, [values[name] for name in names & values.keys()])
    return Forward(Evaluator(ir.to_proto(model), branches=True), outputs, note)


def forward_part(training: ir.Model, loss: str) -> Forward:
    """Extracts the forward part of a training graph, if the forward model is not available.

    Args:
        training: The training graph, with the functions of the ops of ``bngrad``.
        loss: The name of the loss.

    Raises:
        UnsupportedNodeError: An op is not implemented.
        ModelError: ``loss`` is not an output.
    """
    outputs = [str(value.name) for value in training.graph.outputs]
    if loss not in outputs:
        raise ModelError(f"there is no output {loss!r} to differentiate; the outputs are {', '.join(outputs)}")
    graph = ir.convenience.extract(training.graph, [str(v.name) for v in training.graph.inputs], [loss])
    functions = [function.clone() for function in training.functions.values()]
    model = ir.Model(graph, ir_version=training.ir_version, functions=functions)
    return Forward(Evaluator(ir.to_proto(model), branches=True), frozenset(), "")
