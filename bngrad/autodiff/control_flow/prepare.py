"""Prepares If, Loop and Scan of a forward model for differentiation."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.autodiff.control_flow.branches import branches_of
from bngrad.graph.body_nodes import move_before, set_name
from bngrad.graph.constant_value import fixed_value
from bngrad.graph.fresh_names import Names
from bngrad.graph.node_makers import NodesAtEnd
from bngrad.graph.nodes import all_nodes, owner
from bngrad.graph.subgraphs import detach, subgraphs
from bngrad.passes.prepare.infer_types import CONTRADICTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def fold_branches(model: ir.Model) -> bool:
    """Inlines the branches that constant conditions choose; returns whether there was one.

    Args:
        model: The model, without functions; it is changed. Shapes of its inputs that are numbers are constants,
            and once its types are inferred without a contradiction, all shapes that are.
    """
    inputs, inferred = set(model.graph.inputs), model.meta.get(CONTRADICTS) is False

    def sized(value: ir.Value) -> bool:
        return inferred or value in inputs

    chosen = [(node, branch) for node in all_nodes(model) if (branch := _chosen_branch(node, sized)) is not None]
    if not chosen:
        return False
    names = Names(model)
    used = Counter(value.name for graph in model.graphs() for value in _values_of(graph))
    for node, branch in chosen:
        _inline(node, branch, names, used)
    return True


def _chosen_branch(node: ir.Node, sized: Callable[[ir.Value], bool]) -> ir.Graph | None:
    branches = branches_of(node)
    if branches is None or node.inputs[0] is None:
        return None
    condition = fixed_value(node.inputs[0], sized)
    if condition is None or condition.size != 1:
        return None
    return branches[0 if condition.numpy().item() else 1]


def _inline(node: ir.Node, branch: ir.Graph, names: Names, used: Counter[str | None]) -> None:
    """Replaces an If by the nodes of a branch."""
    graph = owner(node)
    _make_own_outputs(branch, names)
    outputs = list(branch.outputs)
    branch.outputs.clear()
    move_before(node, branch, partial(_rename, names=names, used=used))
    for other in subgraphs(node):
        detach(other)
    ir.convenience.replace_nodes_and_values(graph, node, [node], [], list(node.outputs), outputs)


def _rename(value: ir.Value, names: Names, used: Counter[str | None]) -> None:
    """Renames a value of a branch if another graph, from which the value can be seen now, has one of that name."""
    if value.name and used[value.name] > 1:
        set_name(value, names.fresh(value.name))


def _make_own_outputs(body: ir.Graph, names: Names) -> None:
    """Copies the outputs of a branch that its nodes do not make, or that are twice among them."""
    seen: set[ir.Value] = set()
    for index, value in enumerate(body.outputs):
        maker = value.producer()
        if maker is None or maker.graph is not body or value in seen:
            copy = NodesAtEnd(body, names, str(value.name)).op("Identity", value)
            copy.type, copy.shape = value.type, value.shape
            body.outputs[index] = copy
        seen.add(value)


def _values_of(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from (value for value in graph.initializers.values() if not value.is_graph_input())
    for node in graph:
        yield from node.outputs
