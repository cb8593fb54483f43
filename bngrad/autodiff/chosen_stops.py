"""The stops of gradients that a user chooses by the names of values: `ForwardOptions.stop_gradient`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.autodiff.edges import can_have_gradient
from bngrad.autodiff.running_statistics import is_statistic
from bngrad.autodiff.stop_gradient import DOMAIN, NAME
from bngrad.errors import ModelError
from bngrad.graph.fresh_names import Names
from bngrad.graph.name_messages import unknown_name
from bngrad.graph.node_makers import NodesAfter, nodes_at_start
from bngrad.graph.nodes import describe
from bngrad.graph.same_values import SAME_VALUES, readers
from bngrad.graph.subgraphs import nodes_of, subgraphs
from bngrad.opset.known_shapes import type_text
from bngrad.passes.prepare.infer_types import InferTypesPass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PREFIX = "bngrad_stop"


def with_chosen_stops(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """Returns a model in which everything reads some values through a StopGradient: itself, or a copy.

    Args:
        model: The user's model.
        names: Names of inputs, initializers, and values that nodes compute, also in bodies of If, Loop and Scan.

    Raises:
        ModelError: The model does not have a name, or the value is no float or a running statistic.
    """
    if not names:
        return model
    model = model.clone()
    InferTypesPass()(model)
    new_names, bodies = Names(model), [body for node in nodes_of(model.graph) for body in subgraphs(node)]
    values = [(graph, value) for graph in (model.graph, *bodies) for value in _values_of(graph)]
    for name in dict.fromkeys(names):
        if not any(value.name == name for _, value in values):
            raise ModelError(unknown_name(name, {str(value.name) for _, value in values}, "a value"))
        for graph, value in values:
            if value.name == name:
                _stop(graph, value, new_names, bodies)
    model.opset_imports.setdefault(DOMAIN, 1)
    return model


def refuse_stopped_loss(loss: ir.Value, names: Sequence[str]) -> None:
    """Refuses a stop at the loss, to which no gradient would flow.

    Raises:
        ModelError: The loss is one of the values.
    """
    if loss.name in names:
        raise ModelError(
            f"{loss.name!r} is the loss, so that no gradient would be left; leave it out of --stop-gradient "
            "(stop_gradient=)"
        )


def _values_of(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from dict.fromkeys((*graph.inputs, *graph.initializers.values()))
    yield from (value for node in graph for value in node.outputs if value.name)


def _stop(graph: ir.Graph, value: ir.Value, names: Names, bodies: Sequence[ir.Graph]) -> None:
    if not (can_have_gradient(value) and isinstance(value.type, ir.TensorType | None)):
        raise ModelError(f"{value.name!r} ({type_text(value)}) has no gradient to stop; expected a float")
    for node, index in readers(value, SAME_VALUES):
        if is_statistic(node, index):
            raise ModelError(
                f"{value.name!r} is a running statistic of {describe(node)}, which is no weight; leave it out of "
                "--stop-gradient (stop_gradient=)"
            )
    uses, maker = list(value.uses()), value.producer()
    make = nodes_at_start(graph, names, _PREFIX) if maker is None else NodesAfter(maker, names, _PREFIX)
    (stopped,) = make.outputs_of(NAME, value, outputs=["stopped"], domain=DOMAIN)
    stopped.type, stopped.shape = value.type, value.shape
    for node, index in uses:
        node.replace_input_with(index, stopped)
    for body in bodies:
        for index, output in enumerate(body.outputs):
            if output is value:
                body.outputs[index] = stopped
