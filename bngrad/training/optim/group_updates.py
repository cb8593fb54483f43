"""The updates of weights as nodes of an op of `opset.group_updates`: one for the weights with equal options.

The function of a node consists of the nodes that update each of its weights without the op.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.errors import InputError
from bngrad.graph.fresh_names import Names
from bngrad.graph.node_makers import NodesAtEnd
from bngrad.graph.node_reader import dtype_of
from bngrad.graph.overloads import call_of, function_of, refuse_old_runtimes
from bngrad.opset.convolutions import MIN_IR_VERSION
from bngrad.opset.domain import DOMAIN
from bngrad.opset.group_updates import CONDITION, SIGNATURES, TYPES
from bngrad.training.optim.nodes import UpdateNodes, Weight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.training.optim.base import Optimizer
    from bngrad.training.optim.joint import Updates
    from bngrad.training.options import StepOptions


def require_group_updates(options: StepOptions) -> None:
    """Refuses an op for the updates whose function is left out.

    Raises:
        InputError: The functions of the ops are left out.
    """
    if options.group_updates and not options.functions:
        raise InputError(
            "--group-updates (group_updates=) needs the functions of the ops; leave out --no-functions"
        )


def updates_by_groups(model: ir.Model, updates: Updates, is_applied: ir.Value | None) -> list[Sequence[ir.Value]]:
    """Adds the updates of weights by the op of their optimizer, and its functions to the model.

    Weights of a type that the op does not have are updated by nodes of their own.

    Args:
        model: The model.
        updates: The updates.
        is_applied: The bool scalar that is False where weights and slots stay as they are; None for True.

    Returns:
        The new value of each weight, then of its slots.
    """
    optimizer, name = updates.optimizer, updates.optimizer.group_op
    types = [getattr(ir.DataType, dtype.upper()) for dtype in TYPES[name]]
    groups: dict[object, list[int]] = {}
    new: list[Sequence[ir.Value]] = [()] * len(updates.weights)
    for index, weight in enumerate(updates.weights):
        dtype = dtype_of(weight.value)
        if dtype in types:
            groups.setdefault((weight.options, dtype), []).append(index)
        else:
            new[index] = _applied(updates.make, weight, optimizer.update(updates.nodes, weight), is_applied)
    for number, members in enumerate(groups.values(), 1):
        group = [updates.weights[index] for index in members]
        values = _update(model, updates, group, is_applied, str(number))
        for position, index in enumerate(members):
            new[index] = values[position :: len(members)]
    if groups:
        function = model.functions[DOMAIN, name, str(len(groups))]
        inputs, outputs = ([str(value.name) for value in side] for side in (function.inputs, function.outputs))
        refuse_old_runtimes(model, name, inputs, outputs, SIGNATURES[name][2])
    return new


def _update(
    model: ir.Model, updates: Updates, group: Sequence[Weight], is_applied: ir.Value | None, overload: str
) -> Sequence[ir.Value]:
    """Adds the node of a group, and its function; returns the new weights, then their slots."""
    optimizer, options = updates.optimizer, group[0].options
    name = optimizer.group_op
    scalars = optimizer.group_scalars(updates.nodes, group[0])
    graph = _definition(optimizer, group, scalars, model.opset_imports[""], conditional=is_applied is not None)
    function = function_of(name, overload, graph, SIGNATURES[name][2])
    weights, gradients, *slots = _columns(group)
    old = [*weights, *(slot for column in slots for slot in column)]
    inputs = [*scalars, is_applied, *weights, *gradients, *old[len(weights) :]]
    attributes = optimizer.group_attributes(options)
    new = call_of(model, updates.make, function, inputs, ["new_tensor"] * len(old), attributes)
    for before, after in zip(old, new, strict=True):
        after.type, after.shape = before.type, before.shape
    return new


def _definition(
    optimizer: Optimizer, group: Sequence[Weight], scalars: Sequence[ir.Value], opset: int, *, conditional: bool
) -> ir.Graph:
    """The nodes that update each weight of a group."""
    names = list(SIGNATURES[optimizer.group_op][0])
    arguments = [_like(value, name) for value, name in zip(scalars, names, strict=False)]
    weights = [
        Weight(
            _like(weight.value, f"weight_{index}"),
            _like(weight.gradient, f"gradient_{index}"),
            [_like(slot, f"slot_{number}_{index}") for number, slot in enumerate(weight.slots)],
            # The scaled learning rate is an argument.
            weight.options._replace(learning_rate_scale=1.0),
        )
        for index, weight in enumerate(group)
    ]
    is_applied = ir.val(CONDITION, ir.DataType.BOOL, [])
    inputs = [*arguments, is_applied, *(value for column in _columns(weights) for value in column)]
    graph = ir.Graph(inputs, [], nodes=[], opset_imports={"": opset}, name=optimizer.group_op)
    make = NodesAtEnd(graph, Names(ir.Model(graph, ir_version=MIN_IR_VERSION)), graph.name or "")
    nodes = _FunctionNodes(make, arguments)
    condition = is_applied if conditional else None
    new = [_applied(make, weight, optimizer.update(nodes, weight), condition) for weight in weights]
    graph.outputs.extend(value for column in zip(*new, strict=True) for value in column)
    return graph


class _FunctionNodes(UpdateNodes):
    """Makes the nodes of a function, whose first arguments are what the weights have in common."""

    def __init__(self, make: NodesAtEnd, arguments: Sequence[ir.Value]) -> None:
        super().__init__(make, arguments[0], gradient_scale=arguments[-1])
        self._coefficients = arguments[0]

    def coefficients(self, weight: Weight, make: object) -> ir.Value:  # noqa: ARG002 - made outside
        return self._coefficients


def _applied(
    make: NodesAtEnd, weight: Weight, new: Sequence[ir.Value], is_applied: ir.Value | None
) -> Sequence[ir.Value]:
    """The new values of a weight and its slots, or the old ones if the condition is False."""
    if is_applied is None:
        return new
    return [make.where(is_applied, *pair) for pair in zip(new, (weight.value, *weight.slots), strict=True)]


def _columns(group: Sequence[Weight]) -> list[tuple[ir.Value, ...]]:
    """The weights, their gradients, and each of their slots."""
    return list(zip(*((weight.value, weight.gradient, *weight.slots) for weight in group), strict=True))


def _like(value: ir.Value, name: str) -> ir.Value:
    return ir.Value(name=name, type=value.type, shape=value.shape)
