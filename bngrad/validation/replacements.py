"""The parts of a graph under test that replace the sites and steps of an original training graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from bngrad.graph.nodes import nodes_behind
from bngrad.graph.subgraphs import captured_values, nodes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from bngrad.validation.sites import Site
    from bngrad.validation.steps import Step

    Array = NDArray[Any]


class Replacements:
    """Extracts parts of a graph under test, each in a time that depends on the part alone.

    Args:
        rewritten: The graph under test, which must not change.
    """

    def __init__(self, rewritten: ir.Model) -> None:
        self._model = rewritten
        self._values = ir.convenience.create_value_mapping(rewritten.graph, include_subgraphs=False)
        self._position = {node: index for index, node in enumerate(rewritten.graph)}

    def of(self, site: Site | Step, values: Mapping[str, Array]) -> ir.Model:
        """Returns the part that computes the outputs of a site or step.

        Args:
            site: A site or step of the original.
            values: Arrays by name, which determine the types and shapes of the inputs.

        Raises:
            ValueError: The graph under test lacks a value, or computes an output from other values.
        """
        reads, outputs = ([self._value(name) for name in names] for names in (site.reads, site.outputs.values()))
        nodes, initializers = self._between(reads, outputs)
        graph = self._model.graph
        view = ir.GraphView(
            reads,
            outputs,
            nodes=nodes,
            initializers=initializers,
            opset_imports=graph.opset_imports,
            name=graph.name,
        )
        part = ir.convenience.extract(view, reads, outputs)
        for node in part:
            for value in node.outputs:
                if value.name in site.reads:  # an unused output of a needed node; the part has it as an input
                    value.name = f"{value.name}/again"
        for value in part.inputs:
            array = values[str(value.name)]
            value.dtype, value.shape = ir.DataType.from_numpy(array.dtype), ir.Shape(array.shape)
        functions = [function.clone() for function in self._functions(part)]
        return ir.Model(part, ir_version=self._model.ir_version, functions=functions)

    def _value(self, name: str) -> ir.Value:
        if name not in self._values:
            raise ValueError(f"the graph under test has no value '{name}'")
        return self._values[name]

    def _between(
        self, reads: Sequence[ir.Value], outputs: Sequence[ir.Value]
    ) -> tuple[list[ir.Node], list[ir.Value]]:
        """Returns the nodes between values in their order, and the weights that they read."""
        nodes = sorted(nodes_behind(outputs, reads), key=self._position.__getitem__)
        operands = (x for node in nodes for x in (*node.inputs, *captured_values(node)) if x is not None)
        return nodes, list(dict.fromkeys(x for x in (*reads, *operands) if x.is_initializer()))

    def _functions(self, part: ir.Graph) -> list[ir.Function]:
        """Returns the functions that a part calls, and those that these call."""
        called: dict[ir.OperatorIdentifier, ir.Function] = {}
        waiting: list[Iterable[ir.Node]] = [part]
        while waiting:
            for node in nodes_of(waiting.pop()):
                key = node.op_identifier()
                if key in self._model.functions and key not in called:
                    called[key] = self._model.functions[key]
                    waiting.append(called[key])
        return list(called.values())
