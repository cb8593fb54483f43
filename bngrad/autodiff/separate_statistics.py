"""Gives the batch norms of a forward model running statistics that nothing else reads.

In a training graph a running statistic is an input that the next step replaces. Other readers of the same
initializer, such as another batch norm or an op that uses it as a weight, must not see the new value. A batch norm
in a body reads the input itself; `return_statistics_of_bodies` adds the output later, under the name noted here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import onnx_ir as ir

from bngrad.autodiff.body_statistics import NEW_NAME, require_unread
from bngrad.autodiff.running_statistics import is_statistic
from bngrad.autodiff.stop_gradient import DOMAIN as STOP_DOMAIN
from bngrad.autodiff.stop_gradient import NAME as STOP
from bngrad.errors import ModelError
from bngrad.graph.constant_value import lift_constant, new_initializer
from bngrad.graph.nodes import describe, owner
from bngrad.graph.same_values import readers
from bngrad.graph.torch_records import recorded_mode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bngrad.autodiff.running_statistics import Statistic


def separate_statistics(
    graph: ir.Graph, statistics: Sequence[Statistic], is_trained: Callable[[ir.Node], bool]
) -> None:
    """Gives every batch norm in training mode statistics of its own, and names its outputs.

    A frozen batch norm gets its own only where the statistic is also used as a weight, which training changes.

    Args:
        graph: The main graph.
        statistics: The result of `find_statistics`.
        is_trained: A function that returns whether a batch norm is in training mode.
    """
    weights = _read_as_weights(statistics)
    for statistic in statistics:
        if is_trained(statistic.node):
            value = _input(graph, statistic, statistic.name)
            if statistic.node.graph is graph:
                _name_output(statistic, statistic.new_name)
            else:
                value = _with_new_name(graph, value, statistic.new_name)
            _read(graph, statistic, value)
        elif statistic.source in weights:
            _read(graph, statistic, _as_graph_input(graph, _input(graph, statistic, statistic.name)))


def chain_statistics(
    graph: ir.Graph,
    statistics: Sequence[Statistic],
    is_trained: Callable[[ir.Node], bool],
    *,
    recorded_only: bool = False,
) -> None:
    """Gives batch norms in training mode that read the same statistic one input for it, updated by each in turn.

    In the order of the graph, a batch norm in training mode reads the output of the previous one. Frozen ones read
    the input. A recorded order of the calls takes precedence, and then frozen ones read the last updated value.

    Args:
        graph: The main graph.
        statistics: The result of `find_statistics`.
        is_trained: A function that returns whether a batch norm is in training mode.
        recorded_only: Whether to merge only statistics that PyTorch's exporter records as one buffer, and separate
            the others.

    Raises:
        ModelError: With ``recorded_only``, a batch norm that was in evaluation mode in PyTorch reads a statistic
            that one in training mode has updated in the same pass.
    """
    groups: dict[tuple[ir.Value, int, str | None], list[Statistic]] = {}
    for statistic in statistics:
        groups.setdefault(statistic.group, []).append(statistic)
    for group in groups.values():
        calls = [statistic.call for statistic in group]
        in_order = None not in calls
        members = sorted(group, key=lambda statistic: statistic.call or 0) if in_order else group
        updating = [statistic for statistic in members if is_trained(statistic.node)]
        if recorded_only and updating and not in_order:
            frozen = [
                statistic for statistic in members[members.index(updating[0]) :] if not is_trained(statistic.node)
            ]
            _refuse_reading_updated(frozen, updating[0])
        minimum = 1 if in_order and len(members) > 1 else 2
        if len(updating) < minimum or (recorded_only and not in_order and members[0].buffer is None):
            separate_statistics(graph, members, is_trained)
            continue
        if any(statistic.node.graph is not graph for statistic in updating):
            if in_order and (members != group or len(updating) < len(members)):
                _refuse_order(updating[0])
            nodes, name = [statistic.node for statistic in updating], str(members[0].source.name)
            require_unread(graph, name, nodes, members[0].slot - 2)
            first = _with_new_name(graph, _input(graph, members[0], members[0].chain), members[0].new_chain)
            for statistic in members:
                _read(graph, statistic, first)
            continue
        _chain(graph, members, updating, in_order=in_order)
        if in_order:
            graph.sort()


def _chain(
    graph: ir.Graph, members: Sequence[Statistic], updating: Sequence[Statistic], *, in_order: bool
) -> None:
    """Lets batch norms of the main graph update a statistic in turn; frozen ones read it, in order or at first."""
    current = first = read_frozen = _input(graph, members[0], members[0].chain)
    for statistic in members:
        if statistic in updating:
            _read(graph, statistic, current)
            current = _name_output(
                statistic, statistic.new_chain if statistic is updating[-1] else statistic.new_name
            )
            read_frozen = first
        else:
            if in_order and current is not first and read_frozen is first:
                read_frozen = _without_gradient(statistic.node, current)
            _read(graph, statistic, read_frozen)


def _without_gradient(reader: ir.Node, value: ir.Value) -> ir.Value:
    """Returns an updated statistic after a StopGradient, for a frozen batch norm."""
    result = ir.Value(name=f"{value.name}/read", type=value.type, shape=value.shape)
    node = ir.node(STOP, [value], domain=STOP_DOMAIN, outputs=[result], name=f"{value.name}/read")
    graph = reader.graph
    assert graph is not None, "a batch norm of the main graph"  # noqa: S101
    graph.insert_before(reader, node)
    return result


def _refuse_reading_updated(frozen: Sequence[Statistic], first: Statistic) -> None:
    """Refuses a batch norm in evaluation mode after one in training mode that updates its statistic."""
    for statistic in frozen:
        if recorded_mode(statistic.node) is False and statistic.buffer is not None:
            raise ModelError(
                f"{describe(statistic.node)} was in evaluation mode in PyTorch, and reads the running statistics "
                f"that {describe(first.node)} has updated before it; pass --shared-statistics chain "
                "(shared_statistics=) to let it read those from before the step"
            )


def _refuse_order(statistic: Statistic) -> NoReturn:
    """Refuses recorded calls that bodies cannot follow: in another order than the nodes, or in both modes."""
    raise ModelError(
        f"{describe(statistic.node)} is one of several batch norms, some in the body of another node, that read "
        "one running statistic, and their recorded calls are in another order than the nodes, or in both modes; "
        "pass --shared-statistics separate (shared_statistics=)"
    )


def replace_statistic(statistic: Statistic, value: ir.Value) -> None:
    """Connects another value to a batch norm, and removes Identity nodes that become unused."""
    old = statistic.node.inputs[statistic.slot]
    statistic.node.replace_input_with(statistic.slot, value)
    while old is not None and old is not value and not old.uses() and not old.is_graph_output():
        maker = old.producer()
        if maker is None or maker.op_type != "Identity":
            break
        old = maker.inputs[0]
        owner(maker).remove(maker, safe=True)


def _read_as_weights(statistics: Sequence[Statistic]) -> set[ir.Value]:
    """Returns the sources that are also used as something other than a running statistic."""
    return {
        statistic.source
        for statistic in statistics
        if not all(is_statistic(*reader) for reader in readers(statistic.source))
    }


def _input(graph: ir.Graph, statistic: Statistic, name: str) -> ir.Value:
    """Returns the source itself if it has that name, else a copy."""
    if name == statistic.source.name:
        return statistic.source
    if statistic.value is not None:
        return new_initializer(graph, name, statistic.value)
    value = ir.Value(name=name, type=statistic.source.type, shape=statistic.source.shape)
    graph.inputs.append(value)
    return value


def _with_new_name(graph: ir.Graph, value: ir.Value, name: str) -> ir.Value:
    """Notes the name of the output with the new value of a statistic that batch norms in bodies update."""
    value = value if value.producer() is None else lift_constant(graph, value)
    value.meta[NEW_NAME] = name
    return value


def _as_graph_input(graph: ir.Graph, value: ir.Value) -> ir.Value:
    if not value.is_graph_input():
        graph.inputs.append(value)
    return value


def _read(graph: ir.Graph, statistic: Statistic, value: ir.Value) -> None:
    replace_statistic(statistic, value)
    source = statistic.source
    # Feeding an unused input would have no effect.
    if source.is_graph_input() and not source.uses() and not source.is_graph_output():
        graph.inputs.remove(source)
        graph.initializers.pop(str(source.name), None)


def _name_output(statistic: Statistic, name: str) -> ir.Value:
    statistic.node.resize_outputs(max(3, len(statistic.node.outputs)))
    value = statistic.node.outputs[statistic.slot - 2]
    value.name = value.name or name
    return value
