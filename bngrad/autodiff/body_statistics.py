"""Running statistics that batch norms in bodies of If, Loop and Scan update.

A batch norm in a body reads its statistic from the main graph until the gradients are there, so that neither these
nor the bodies in which forward values are computed again have to know of it. Then the new values pass through the
bodies: an If returns the statistic of the branch taken, and a Loop or Scan has it as a state::

    y    = Loop(n, , x)     body: u -> BatchNormInternal(u, scale, bias, m, v)
    =>  y, m_new, v_new = Loop(n, , x, m, v)
                            body: u, m_i, v_i -> BatchNormInternal(u, scale, bias, m_i, v_i)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import onnx_ir as ir

from bngrad.autodiff.control_flow.branches import branches_of
from bngrad.autodiff.control_flow.repetition import repetition
from bngrad.autodiff.ghost_batches import ghost_size
from bngrad.autodiff.new_statistics import NEW_STATISTICS
from bngrad.autodiff.running_statistics import is_of_onnx
from bngrad.errors import ModelError
from bngrad.graph.fresh_names import Names
from bngrad.graph.node_makers import NodesAtEnd
from bngrad.graph.nodes import describe, is_read, owner
from bngrad.graph.subgraphs import nodes_of, subgraphs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from bngrad.autodiff.control_flow.repetition import Repetition
    from bngrad.autodiff.running_statistics import Statistic

NEW_NAME = "bngrad.new_statistic"
"""The key in the ``meta`` of a statistic that batch norms in bodies update, for the name of its new value."""


def require_trainable(
    graph: ir.Graph, statistics: Iterable[Statistic], is_trained: Callable[[ir.Node], bool]
) -> None:
    """Refuses batch norms in training mode in bodies that cannot update their running statistics.

    Args:
        graph: The main graph.
        statistics: The result of `find_statistics`.
        is_trained: A function that returns whether a batch norm is in training mode.

    Raises:
        ModelError: There is one; the message names it.
    """
    places = {(statistic.node, statistic.slot) for statistic in statistics}
    around: dict[ir.Graph, ir.Node] = {}
    for node in nodes_of(graph):
        around |= dict.fromkeys(subgraphs(node), node)
        if node.graph is not graph and is_trained(node):
            _require_trainable(node, places, around)


def _require_trainable(
    node: ir.Node, places: Collection[tuple[ir.Node, int]], around: dict[ir.Graph, ir.Node]
) -> None:
    if not is_of_onnx(node):
        _refuse(node, "where only ONNX's BatchNormalization updates its running statistics")
    if ghost_size(node) is not None:
        _refuse(node, "where ghost batches are unsupported; remove them with bngrad batchnorm --ghost 0 (ghost=)")
    if not all((node, slot) in places for slot in (3, 4)):
        _refuse(node, "which makes or changes its running statistics; expected inputs or constants of the model")
    is_repeated = False
    for outer, _ in _bodies_around(node, around):
        is_repeated |= repetition(outer) is not None
        if branches_of(outer) is None and repetition(outer) is None:
            _refuse(node, f"{describe(outer)}; expected an If, Loop or Scan")
    if is_repeated and any(map(is_read, node.outputs[1:3])):
        _refuse(node, "whose steps read its new running statistics")


def require_unread(graph: ir.Graph, name: str, nodes: Sequence[ir.Node], output: int) -> None:
    """Refuses a batch norm whose new statistic is read, and that updates it after another one.

    The nodes that compute the new statistic again for the gradient read the one from before the step.

    Args:
        graph: The main graph.
        name: The name of the statistic.
        nodes: The batch norms that update it in turn, some of which are in bodies.
        output: The index of their output that is the new statistic.

    Raises:
        ModelError: There is one; the message names it.
    """
    around = {body: node for node in nodes_of(graph) for body in subgraphs(node)}
    places = [dict(_bodies_around(node, around)) for node in nodes]
    for index, node in enumerate(nodes):
        if len(node.outputs) <= output or not is_read(node.outputs[output]):
            continue
        for other, place in zip(nodes[:index], places, strict=False):
            if all(places[index].get(outer, body) is body for outer, body in place.items()):
                raise ModelError(
                    f"{describe(node)} reads the running statistics {name!r} after {describe(other)} has updated "
                    "them, which gradients of new running statistics in bodies cannot follow; leave the new ones "
                    "unread, or pass --shared-statistics separate (shared_statistics=)"
                )


def _bodies_around(node: ir.Node, around: Mapping[ir.Graph, ir.Node]) -> Iterator[tuple[ir.Node, ir.Graph]]:
    """Yields the nodes whose bodies a node is in, and the bodies: one of an If runs, and not its other one."""
    graph = owner(node)
    while (outer := around.get(graph)) is not None:
        yield outer, graph
        graph = owner(outer)


def _refuse(node: ir.Node, reason: str) -> NoReturn:
    raise ModelError(
        f"{describe(node)} is a batch norm in training mode in the body of another node, {reason}; move it out of "
        "the body, or name it with --frozen (frozen=)"
    )


def statistics_of_bodies(graph: ir.Graph) -> list[ir.Value]:
    """Returns the inputs and initializers that batch norms in bodies update, without those of unused branches."""
    values = dict.fromkeys((*graph.inputs, *graph.initializers.values()))
    return [value for value in values if NEW_NAME in value.meta and value.uses()]


def return_statistics_of_bodies(model: ir.Model, nodes: Collection[ir.Node]) -> None:
    """Adds the new values of the statistics that batch norms in bodies update to the outputs of the graph.

    Args:
        model: The model; it is changed, and its ``meta`` records the names under `NEW_STATISTICS`.
        nodes: The batch norms in training mode, without those that compute forward values again.
    """
    names, pairs = Names(model), {}
    for old in statistics_of_bodies(model.graph):
        updating = {node: index for node, index in old.uses() if node in nodes}
        if not updating:  # only frozen ones are in the branches taken
            continue
        new = _Updates(old, updating, names).through(model.graph, old)
        if not new.is_graph_output():
            new.name = str(old.meta[NEW_NAME])
            model.graph.outputs.append(new)
        pairs[str(old.name)] = str(new.name)
    model.meta[NEW_STATISTICS] = {**model.meta.get(NEW_STATISTICS, {}), **pairs}


class _Updates:
    """The batch norms that update a statistic in turn, with the index of their input that it is."""

    def __init__(self, old: ir.Value, slots: dict[ir.Node, int], names: Names) -> None:
        self._old = old
        self._slots = slots
        self._names = names

    def through(self, graph: ir.Graph, current: ir.Value) -> ir.Value:
        """Lets the nodes of a graph update the statistic; returns its last value."""
        for node in list(graph):
            if node in self._slots:
                index = self._slots[node]
                node.replace_input_with(index, current)
                current = self._typed(node.outputs[index - 2])
            elif any(inner in self._slots for body in subgraphs(node) for inner in nodes_of(body)):
                current = self._through_bodies(node, current)
        return current

    def _through_bodies(self, node: ir.Node, current: ir.Value) -> ir.Value:
        loop = repetition(node)
        if loop is not None:
            return self._through_steps(loop, current)
        for body in branches_of(node) or ():
            body.outputs.append(self._own(body, self.through(body, current)))
        node.resize_outputs(len(node.outputs) + 1)
        return self._typed(node.outputs[-1])

    def _through_steps(self, loop: Repetition, current: ir.Value) -> ir.Value:
        """Adds a state after the others of a Loop or Scan, which another node replaces."""
        node, body, place = loop.node, loop.body, loop.element_inputs.start
        state = self._typed(ir.Value())
        body.outputs.insert(loop.lead + loop.states, self._own(body, self.through(body, state)))
        body.inputs.insert(place, state)
        inputs = [*node.inputs, *[None] * (place - len(node.inputs))]
        inputs.insert(place, current)
        node.resize_outputs(max(len(node.outputs), loop.states))
        result = ir.Node(
            node.domain,
            node.op_type,
            inputs,
            node.attributes.values(),
            num_outputs=len(node.outputs) + 1,
            name=node.name,
            doc_string=node.doc_string,
            metadata_props=node.metadata_props,
        )
        result.meta.update(node.meta)
        for value in node.outputs:  # ONNX Runtime takes no output before the last that is left out
            value.name = value.name or self._names.fresh(f"{node.name}_output")
        others = [value for index, value in enumerate(result.outputs) if index != loop.states]
        ir.convenience.replace_nodes_and_values(owner(node), node, [node], [result], node.outputs, others)
        return self._typed(result.outputs[loop.states])

    def _own(self, body: ir.Graph, value: ir.Value) -> ir.Value:
        """Returns a value that a node of a body makes, and that is no output of it."""
        maker = value.producer()
        if maker is not None and maker.graph is body and not value.is_graph_output():
            return value
        return self._typed(NodesAtEnd(body, self._names, str(self._old.name)).op("Identity", value))

    def _typed(self, value: ir.Value) -> ir.Value:
        """Gives a value of the statistic its type and shape, and a name if it has none."""
        value.name = value.name or self._names.fresh(f"{self._old.name}_next")
        value.type, value.shape = self._old.type, self._old.shape
        return value
