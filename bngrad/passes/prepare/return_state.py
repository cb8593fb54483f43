"""Running statistics that ONNX Runtime updates in place -> graph outputs.

::

    com.microsoft.BatchNormInternal(X, scale, bias, running_mean, running_var)
        -> (Y, new_running_mean, new_running_var, saved_mean, saved_inv_std)

ONNX Runtime's kernel writes outputs 1 and 2 to the buffers of inputs 3 and 4 unless they are graph outputs. The
training graphs of onnxruntime.training do not use these outputs and rely on the update in place. Neither the ops
of ``bngrad`` nor standard ops write to their inputs, so the new values become graph outputs, which the caller
feeds to the next step.
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
"""The key in a model's ``meta`` for the outputs with new state, by the names of the inputs that they update."""

NOTES = "bngrad.notes"
"""The key in a model's ``meta`` for the messages of passes to the user."""

_UPDATES = {3: 1, 4: 2}
"""The output of BatchNormInternal that is the new value of an input, by the input's index."""


class ReturnStatePass(ir.passes.InPlacePass):
    """Turns the running statistics that BatchNormInternal nodes update in place into graph outputs.

    A statistic that is an initializer becomes a graph input with that value as its default. If several nodes
    update the same statistic, each reads the output of the one before, in graph order.
    Guarantees: names stay the same; a new output keeps its name, or is named ``<running statistic>_new``.
    Does not change, but notes in the model's ``meta``: nodes in subgraphs and functions, and ONNX's
    BatchNormalization, which ONNX Runtime's kernel updates in place although ONNX does not define it so.
    Skips the state that an earlier run has returned, as recorded in the model's ``meta``.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        names, returned = Names(model), state_of(model)
        users: dict[ir.Value, list[tuple[ir.Node, int]]] = {}
        not_returned: dict[ir.Node, None] = {}
        for node, index, old in _updates(model):
            output, in_main_graph = _UPDATES[index], node.graph is model.graph
            if in_main_graph and output < len(node.outputs) and node.outputs[output].is_graph_output():
                if old.is_graph_input():
                    return_state(model, old, node.outputs[output])
            elif in_main_graph and (node.domain, node.op_type) == BATCH_NORM_INTERNAL:
                users.setdefault(old, []).append((node, index))
            elif old.is_graph_input() or old.is_initializer():
                not_returned[node] = None
        states = [value for value in users if value.producer() is None and value.name not in returned]
        for old in states:
            return_state(model, old, _chained_updates(old, users, names))
        if not_returned:
            add_note(model, _not_returned_note(list(not_returned)))
        return ir.passes.PassResult(model, modified=bool(states))

    def ensures(self, model: ir.Model) -> None:
        """All recorded state consists of a graph input and a graph output."""
        inputs = {value.name for value in model.graph.inputs}
        outputs = {value.name for value in model.graph.outputs}
        for old, new in state_of(model).items():
            if old not in inputs or new not in outputs:
                raise ir.passes.PostconditionError(f"{new!r}, the new value of {old!r}, is not a graph output")


def _updates(model: ir.Model) -> Iterator[tuple[ir.Node, int, ir.Value]]:
    """Yields each input that ONNX Runtime's kernel overwrites: the batch norm, the input's index and the input."""
    for node in op_nodes(model):
        if (node.domain, node.op_type) == BATCH_NORM_INTERNAL or is_training_batch_norm(node):
            for index, old in enumerate(node.inputs):
                if index in _UPDATES and old is not None:
                    yield node, index, old


def _not_returned_note(nodes: Sequence[ir.Node]) -> str:
    others = f" (and {len(nodes) - 1} more)" if len(nodes) > 1 else ""
    return (
        f"ONNX Runtime updates the running statistics of {describe(nodes[0])}{others} in place; the rewritten op "
        "does not: to use the new ones, make them graph outputs"
    )


def _chained_updates(old: ir.Value, users: dict[ir.Value, list[tuple[ir.Node, int]]], names: Names) -> ir.Value:
    """Chains the nodes that update a statistic, each reading the output before, and returns the last output."""
    value = old
    waiting = list(users[old])
    while waiting:
        node, index = waiting.pop(0)
        if value.producer() is not node:  # one statistic may be both mean and variance of a node
            node.replace_input_with(index, value)
        value = _updated_statistic(node, index, names)
        # The graph may connect nodes in this way already.
        waiting = [*users.get(value, ()), *waiting]
    return value


def _updated_statistic(node: ir.Node, index: int, names: Names) -> ir.Value:
    """Returns the output of a BatchNormInternal that is the new value of an input, added if the node omits it."""
    old = node.inputs[index]
    node.resize_outputs(max(len(node.outputs), _UPDATES[index] + 1))
    new = node.outputs[_UPDATES[index]]
    if old is not None:
        new.name = new.name or names.fresh(f"{old.name}_new")
        new.type, new.shape = new.type or old.type, new.shape or old.shape
    return new


def return_state(model: ir.Model, old: ir.Value, new: ir.Value) -> None:
    """Makes the new value of a state a graph output, and the old value a graph input.

    Args:
        model: The model; its ``meta`` records the two names under `STATE`.
        old: The old value: a graph input or an initializer.
        new: The value for the next step.
    """
    if not old.is_graph_input():
        model.graph.inputs.append(old)
    if not new.is_graph_output():
        model.graph.outputs.append(new)
    model.meta[STATE] = {**state_of(model), str(old.name): str(new.name)}


def state_of(model: ir.Model) -> dict[str, str]:
    """Returns the names of the outputs with new state, by the names of the inputs for the next step."""
    return dict(model.meta.get(STATE, {}))


def add_note(model: ir.Model, note: str) -> None:
    """Adds a message of a pass to the user, unless the model has it already."""
    model.meta[NOTES] = list(dict.fromkeys([*notes_of(model), note]))


def notes_of(model: ir.Model) -> list[str]:
    """Returns the messages of all passes to the user."""
    return list(model.meta.get(NOTES, []))
