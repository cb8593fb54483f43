"""State that ONNX Runtime updates in place -> outputs of the graph.

::

    com.microsoft.BatchNormInternal(X, scale, bias, running_mean, running_var)
        -> (Y, new_running_mean, new_running_var, saved_mean, saved_inv_std)

ONNX Runtime's kernel writes outputs 1 and 2 over inputs 3 and 4 unless they are graph outputs, so a training
graph made by onnxruntime.training leaves them unread and its running statistics move all the same. No op of
``bngrad`` and no standard op writes over its inputs: the new values have to leave the graph, and the caller feeds
them back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.batch_norms import is_training_batch_norm
from bngrad.graph.fresh_names import Names
from bngrad.graph.nodes import describe, op_nodes
from bngrad.opset.ort_dialect import BATCH_NORM_INTERNAL

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

STATE = "bngrad.state"
"""The key in a model's ``meta`` for the outputs that are new state, by the names of the inputs they update."""

NOTES = "bngrad.notes"
"""The key in a model's ``meta`` for notes on what a pass changed, in words."""

_UPDATES = {3: 1, 4: 2}
"""BatchNormInternal: the output that is the new value of an input."""


class ReturnStatePass(ir.passes.InPlacePass):
    """Makes graph outputs of the running statistics that BatchNormInternal nodes update in place.

    A statistic that is an initializer becomes a graph input with that value as its default. Nodes that update the
    same statistic take it from one another, in the order of the graph.
    Guarantees: names are as before; a new output keeps its name, or is called ``<running statistic>_new``.
    Leaves alone, with a note in the model's ``meta``: nodes in subgraphs and functions, and ONNX's own
    BatchNormalization, whose definition updates nothing in place, though ONNX Runtime's kernel does; and what an
    earlier run has returned, by the model's ``meta``.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        names, returned = Names(model), state_of(model)
        users: dict[ir.Value, list[tuple[ir.Node, int]]] = {}
        unmoved: dict[ir.Node, None] = {}
        for node, index, old in _updates(model):
            output, in_main_graph = _UPDATES[index], node.graph is model.graph
            if in_main_graph and output < len(node.outputs) and node.outputs[output].is_graph_output():
                if old.is_graph_input():
                    return_state(model, old, node.outputs[output])
            elif in_main_graph and (node.domain, node.op_type) == BATCH_NORM_INTERNAL:
                users.setdefault(old, []).append((node, index))
            elif old.is_graph_input() or old.is_initializer():
                unmoved[node] = None
        states = [value for value in users if value.producer() is None and value.name not in returned]
        for old in states:
            return_state(model, old, _last(old, users, names))
        if unmoved:
            add_note(model, _unmoved_note(list(unmoved)))
        return ir.passes.PassResult(model, modified=bool(states))

    def ensures(self, model: ir.Model) -> None:
        """What is recorded as state goes from an output of the main graph to an input of it."""
        inputs = {value.name for value in model.graph.inputs}
        outputs = {value.name for value in model.graph.outputs}
        for old, new in state_of(model).items():
            if old not in inputs or new not in outputs:
                raise ir.passes.PostconditionError(f"{new!r}, the new value of {old!r}, does not leave the graph")


def _updates(model: ir.Model) -> Iterator[tuple[ir.Node, int, ir.Value]]:
    """The batch norms in training mode, with the index of each input that ONNX Runtime's kernel writes over."""
    for node in op_nodes(model):
        if (node.domain, node.op_type) == BATCH_NORM_INTERNAL or is_training_batch_norm(node):
            for index, old in enumerate(node.inputs):
                if index in _UPDATES and old is not None:
                    yield node, index, old


def _unmoved_note(nodes: Sequence[ir.Node]) -> str:
    others = f" (and {len(nodes) - 1} more)" if len(nodes) > 1 else ""
    return (
        f"ONNX Runtime writes the new running statistics of {describe(nodes[0])}{others} over the old ones; the "
        "rewritten op does not: to use them, make them graph outputs"
    )


def _last(old: ir.Value, users: dict[ir.Value, list[tuple[ir.Node, int]]], names: Names) -> ir.Value:
    """The value of a statistic after all nodes that update it, each of which takes it from the one before."""
    value = old
    waiting = list(users[old])
    while waiting:
        node, index = waiting.pop(0)
        if value.producer() is not node:  # a node may have one statistic for both
            node.replace_input_with(index, value)
        value = _output(node, index, names)
        # A graph may hand a statistic on itself.
        waiting = [*users.get(value, ()), *waiting]
    return value


def _output(node: ir.Node, index: int, names: Names) -> ir.Value:
    """The new value of an input of a BatchNormInternal, which the node may leave out."""
    old = node.inputs[index]
    node.resize_outputs(max(len(node.outputs), _UPDATES[index] + 1))
    new = node.outputs[_UPDATES[index]]
    if old is not None:
        new.name = new.name or names.fresh(f"{old.name}_new")
        new.type, new.shape = new.type or old.type, new.shape or old.shape
    return new


def return_state(model: ir.Model, old: ir.Value, new: ir.Value) -> None:
    """Makes the new value of a state an output of the main graph, and the old one an input.

    Args:
        model: The model; its ``meta`` gets the two names under `STATE`.
        old: A graph input or an initializer.
        new: What it is in the next step.
    """
    if not old.is_graph_input():
        model.graph.inputs.append(old)
    if not new.is_graph_output():
        model.graph.outputs.append(new)
    model.meta[STATE] = {**state_of(model), str(old.name): str(new.name)}


def state_of(model: ir.Model) -> dict[str, str]:
    """The outputs that are new state, by the names of the inputs that take them in the next step."""
    return dict(model.meta.get(STATE, {}))


def add_note(model: ir.Model, note: str) -> None:
    """Adds a note on what a pass changed, if it is not there already."""
    model.meta[NOTES] = list(dict.fromkeys([*notes_of(model), note]))


def notes_of(model: ir.Model) -> list[str]:
    """The notes of all passes."""
    return list(model.meta.get(NOTES, []))
