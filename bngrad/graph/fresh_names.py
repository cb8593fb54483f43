"""Names that are unused in a model, and the constants that passes add under them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.nodes import all_nodes, owner

if TYPE_CHECKING:
    from collections.abc import Container, Sequence


def free_name(base: str, taken: Container[str | None]) -> str:
    """Returns ``base``, with a number appended if that name is taken."""
    name, number = base, 0
    while name in taken:
        number += 1
        name = f"{base}_{number}"
    return name


class Names:
    """Makes names that no value and no node has in any graph, subgraph or function of some models."""

    def __init__(self, *models: ir.Model) -> None:
        self._taken: set[str | None] = set()
        self._numbers: dict[str, int] = {}
        for model in models:
            self._take(model)

    def _take(self, model: ir.Model) -> None:
        values = (value for node in all_nodes(model) for value in (*node.inputs, *node.outputs))
        self._taken |= {value.name for value in values if value is not None}
        self._taken |= {node.name for node in all_nodes(model)}
        for graph in model.graphs():
            self._taken |= set(graph.initializers) | {value.name for value in graph.inputs}
        for function in model.functions.values():
            self._taken |= {value.name for value in function.inputs}

    def fresh(self, base: str) -> str:
        """Returns ``base``, with a number appended if that name is taken."""
        name, number = base, self._numbers.get(base, 0)  # names are never given back: lower numbers are taken
        while name in self._taken:
            number += 1
            name = f"{base}_{number}"
        self._taken.add(name)
        self._numbers[base] = number
        return name


class NodeNames(Names):
    """Makes names that no node has; names of nodes are independent of names of values."""

    def __init__(self, model: ir.Model) -> None:
        super().__init__()
        self._taken = {node.name for node in all_nodes(model)}


def node_names(model: ir.Model) -> dict[ir.Node, str]:
    """Returns the name of every node in messages and patterns: its own, or else the name of its first output."""
    names = NodeNames(model)
    return {node: node.name or names.fresh(_output_or_op(node)) for node in all_nodes(model)}


def _output_or_op(node: ir.Node) -> str:
    return next((value.name for value in node.outputs if value.name), node.op_type)


class ConstantAxes:
    """The int64 constants that the ops take as ``axes``: one for each graph and set of axes.

    They are Constant nodes, since functions have no initializers.
    """

    def __init__(self, names: Names) -> None:
        self.names = names
        self._made: dict[tuple[int, tuple[int, ...]], ir.Value] = {}

    def value(self, node: ir.Node, axes: tuple[int, ...]) -> ir.Value:
        """Returns a constant in the graph of ``node``."""
        graph = owner(node)
        key = (id(graph), axes)
        if key not in self._made:
            name = self.names.fresh("bngrad_axes_" + "_".join(map(str, axes)))
            constant = int64_constant(axes, name)
            graph.insert_before(graph[0], constant)
            self._made[key] = constant.outputs[0]
        return self._made[key]


def int64_constant(values: Sequence[int], name: str) -> ir.Node:
    """Makes a Constant node with an int64 vector; the node and its output have the same name."""
    tensor = ir.tensor(list(values), dtype=ir.DataType.INT64, name=name)
    constant = ir.node("Constant", inputs=[], attributes={"value": tensor}, name=name)
    (output,) = constant.outputs
    output.name, output.dtype, output.shape = name, ir.DataType.INT64, ir.Shape([len(values)])
    return constant
