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
from bngrad.graph.overloads import function_of, refuse_old_runtimes
from bngrad.opset.convolutions import MIN_IR_VERSION
from bngrad.opset.domain import DOMAIN
from bngrad.opset.group_updates import SIGNATURES, TYPES
from bngrad.training.optim.nodes import UpdateNodes, Weight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.training.optim.base import Optimizer
    from bngrad.training.optim.joint import Updates
    from bngrad.training.options import StepOptions


def require_group_updates(optimizer: Optimizer, options: StepOptions) -> None:
    """Refuses options that ask for an op for the updates where there is none.

    Raises:
        InputError: The optimizer has none, or the functions of the ops are left out.
    """
    option = "--group-updates (group_updates=)"
    if not options.group_updates:
        return
    if optimizer.group_op is None:
        raise InputError(f"{option} is given with the optimizer {optimizer.name}; expected sgd, adam or adamw")
    if not options.functions:
        raise InputError(f"{option} needs the functions of the ops; leave out --no-functions")


def updates_by_groups(model: ir.Model, updates: Updates) -> list[Sequence[ir.Value]]:
    """Adds the updates of weights by the op of their optimizer, and its functions to the model.

    Weights of a type that the op does not have are updated by nodes of their own.

    Returns:
        The new value of each weight, then of its slots.
    """
    optimizer, name = updates.optimizer, updates.optimizer.group_op
    assert name is not None, "`require_group_updates` has refused it"  # noqa: S101
    types = [getattr(ir.DataType, dtype.upper()) for dtype in TYPES[name]]
    groups: dict[object, list[int]] = {}
    new: list[Sequence[ir.Value]] = [()] * len(updates.weights)
    for index, weight in enumerate(updates.weights):
        dtype = dtype_of(weight.value)
        if dtype in types:
            groups.setdefault((weight.options, dtype), []).append(index)
        else:
            new[index] = optimizer.update(updates.nodes, weight)
    for number, members in enumerate(groups.values(), 1):
        values = _update(model, updates, [updates.weights[index] for index in members], str(number))
        for position, index in enumerate(members):
            new[index] = values[position :: len(members)]
    if groups:
        function = model.functions[DOMAIN, name, str(len(groups))]
        inputs, outputs = ([str(value.name) for value in side] for side in (function.inputs, function.outputs))
        refuse_old_runtimes(model, name, inputs, outputs, SIGNATURES[name][2])
    return new


def _update(model: ir.Model, updates: Updates, group: Sequence[Weight], overload: str) -> Sequence[ir.Value]:
    """Adds the node of a group, and its function; returns the new weights, then their slots."""
    optimizer, options = updates.optimizer, group[0].options
    name = str(optimizer.group_op)
    scalars = optimizer.group_scalars(updates.nodes, group[0])
    graph = _definition(optimizer, group, scalars, model.opset_imports[""])
    model.functions[DOMAIN, name, overload] = function_of(name, overload, graph, SIGNATURES[name][2])
    weights, gradients, *slots = _columns(group)
    old = [*weights, *(slot for column in slots for slot in column)]
    new = updates.make.outputs_of(
        name,
        *scalars,
        *weights,
        *gradients,
        *old[len(weights) :],
        outputs=["new_tensor"] * len(old),
        domain=DOMAIN,
        **optimizer.group_attributes(options),
    )
    call = new[0].producer()
    assert call is not None, "it has just been made"  # noqa: S101
    call.overload = overload
    for before, after in zip(old, new, strict=True):
        after.type, after.shape = before.type, before.shape
    return new


def _definition(
    optimizer: Optimizer, group: Sequence[Weight], scalars: Sequence[ir.Value], opset: int
) -> ir.Graph:
    """The nodes that update each weight of a group."""
    names = list(SIGNATURES[str(optimizer.group_op)][0])
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
    inputs = [*arguments, *(value for column in _columns(weights) for value in column)]
    graph = ir.Graph(inputs, [], nodes=[], opset_imports={"": opset}, name=str(optimizer.group_op))
    make = NodesAtEnd(graph, Names(ir.Model(graph, ir_version=MIN_IR_VERSION)), graph.name or "")
    nodes = _FunctionNodes(make, arguments)
    new = zip(*(optimizer.update(nodes, weight) for weight in weights), strict=True)
    graph.outputs.extend(value for column in new for value in column)
    return graph


class _FunctionNodes(UpdateNodes):
    """Makes the nodes of a function, whose first arguments are what the weights have in common."""

    def __init__(self, make: NodesAtEnd, arguments: Sequence[ir.Value]) -> None:
        super().__init__(make, arguments[0], gradient_scale=arguments[-1])
        self._coefficients = arguments[0]

    def coefficients(self, weight: Weight, make: object) -> ir.Value:  # noqa: ARG002 - made outside
        return self._coefficients


def _columns(group: Sequence[Weight]) -> list[tuple[ir.Value, ...]]:
    """The weights, their gradients, and each of their slots."""
    return list(zip(*((weight.value, weight.gradient, *weight.slots) for weight in group), strict=True))


def _like(value: ir.Value, name: str) -> ir.Value:
    return ir.Value(name=name, type=value.type, shape=value.shape)
