"""Computes cheap forward values again in the backward pass, so that fewer are kept until then.

::

    Z = Relu(BatchNorm(X));  dW = ConvGrad(dY, Z, W)
    =>  U = Reshape(X, Min(0, Size(dY)));  V = Relu(BatchNorm(U));  dW = ConvGrad(dY, V, W)

X is kept anyway, for the gradient of the batch norm, and V has the bits of Z. U is X: Reshape keeps each dimension
for which it reads 0, without a copy. But it has to wait for dY; else ONNX Runtime would merge Z and V. A node that
reads V and is computed again waits so, too, since `memory_budget` may put Z in place of V.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.fresh_names import Names
from bngrad.graph.node_makers import NodesAfter
from bngrad.opset.functions import DOMAIN
from bngrad.opset.gradient_names import is_gradient_node_name

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHEAP = {
    (DOMAIN, "BatchNormalizationTraining"),
    (DOMAIN, "BatchNormalizationApply"),
    *(
        ("", op_type)
        for op_type in (
            "Add",
            "BatchNormalization",
            "Clip",
            "Concat",
            "HardSigmoid",
            "HardSwish",
            "LeakyRelu",
            "Relu",
        )
    ),
}
"""Ops that take as long as reading and writing their data, and that ONNX Runtime computes alike in both places."""

COPY_OF = "bngrad.copy_of"
"""The key in the ``meta`` of a value that is computed again for the value that it has the bits of."""

_MOST_NODES = 5
"""Nodes that are computed again for one value.

A block with a residual needs four at most: ReLU, Add and two batch norms. With more, its input is kept.
"""


class RecomputePass(ir.passes.InPlacePass):
    """Computes values of the main graph again that only cheap ops separate from values that are kept.

    Requires: the types and shapes of values, and the names that gradient builders give to nodes.
    Does not change: outputs of the graph, vectors and scalars, and values that a node of the backward pass reads
    without a gradient.
    Guarantees: all results keep their bits.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        plan = _Plan(model.graph)
        copies = _Copies(plan, Names(model))
        for value, gradient in plan.in_backward_order():
            readers = plan.readers(value)
            copy = copies.of(value, gradient)
            for reader, index in readers:
                reader.replace_input_with(index, copy)
        return ir.passes.PassResult(model, modified=bool(copies))


class _Plan:
    """The values of a graph that are computed again, each with the first gradient that its readers wait for."""

    def __init__(self, graph: ir.Graph) -> None:
        self._position = {node: index for index, node in enumerate(graph)}
        self._backward = {node for node in graph if is_gradient_node_name(node.name or "")}
        self._gradients: dict[ir.Value, ir.Value] = {}
        for node in graph:
            value = node.outputs[0] if node not in self._backward and node.outputs else None
            gradient = None if value is None or _is_small(value) else self._first_gradient(value)
            if value is not None and gradient is not None and self._is_cheap(value):
                self._gradients[value] = gradient

    def in_backward_order(self) -> list[tuple[ir.Value, ir.Value]]:
        """The values and gradients, in the order of the gradients."""
        return sorted(self._gradients.items(), key=lambda pair: self._place(pair[1]))

    def readers(self, value: ir.Value) -> list[tuple[ir.Node, int]]:
        """The nodes of the backward pass that read a value, each with the index of the input."""
        return [(reader, index) for reader, index in value.uses() if reader in self._backward]

    def is_kept(self, value: ir.Value) -> bool:
        """Tests whether a value is there in the backward pass in any case."""
        if value.producer() is None or value.is_graph_output() or _is_small(value):
            return True
        return value not in self._gradients and bool(self.readers(value))

    def _place(self, gradient: ir.Value) -> int:
        return self._position[gradient.producer()]  # type: ignore[index]

    def _first_gradient(self, value: ir.Value) -> ir.Value | None:
        """Returns the first gradient that the readers of a value read with it; None if one reads none."""
        readers = {reader for reader, _ in self.readers(value)}
        gradients = [
            next((x for x in reader.inputs if x is not None and x.producer() in self._backward), None)
            for reader in readers
        ]
        present = [gradient for gradient in gradients if gradient is not None]
        return min(present, key=self._place) if present and len(present) == len(readers) else None

    def _is_cheap(self, value: ir.Value) -> bool:
        """Tests whether a value can be computed from kept ones by few cheap nodes."""
        if value.is_graph_output():
            return False
        nodes: set[ir.Node] = set()
        for node in self._nodes_back(value):
            nodes.add(node)
            cheap = (node.domain, node.op_type) in _CHEAP and node.inputs and node.inputs[0] is not None
            if not cheap or node.inputs[0].shape is None or len(nodes) > _MOST_NODES:  # type: ignore[union-attr]
                return False
        return True

    def _nodes_back(self, value: ir.Value) -> Iterator[ir.Node]:
        """Yields the nodes from a value back to kept ones."""
        node = value.producer()
        assert node is not None, "it is not kept"  # noqa: S101
        yield node
        for x in node.inputs:
            if x is not None and not self.is_kept(x):
                yield from self._nodes_back(x)


class _Copies:
    """Makes the nodes that compute values again."""

    def __init__(self, plan: _Plan, names: Names) -> None:
        self._plan, self._names = plan, names
        self._copies: dict[ir.Value, ir.Value] = {}
        self._makers: dict[ir.Node, NodesAfter] = {}
        self._zeros: dict[tuple[ir.Value, int], ir.Value] = {}

    def __bool__(self) -> bool:
        return bool(self._copies)

    def of(self, value: ir.Value, gradient: ir.Value) -> ir.Value:
        """Returns the copy of a value, made after a gradient if an earlier one did not need it."""
        if value in self._copies:
            return self._copies[value]
        node, after = value.producer(), gradient.producer()
        assert node is not None and after is not None, "see `_Plan`"  # noqa: S101, PT018
        inputs = [x if x is None or self._plan.is_kept(x) else self.of(x, gradient) for x in node.inputs]
        maker = self._makers.setdefault(after, NodesAfter(after, self._names, "bngrad_again"))
        inputs[0] = self._delayed(inputs[0], gradient, maker)
        words = [
            f"{node.op_type.lower()}_{index}" if output.name else "" for index, output in enumerate(node.outputs)
        ]
        outputs = maker.outputs_of(node.op_type, *inputs, outputs=words, domain=node.domain, **node.attributes)
        for output, new in zip(node.outputs, outputs, strict=True):
            new.type, new.shape, new.meta[COPY_OF] = output.type, output.shape, output
        self._copies[value] = outputs[0]
        return outputs[0]

    def _delayed(self, x: ir.Value | None, gradient: ir.Value, maker: NodesAfter) -> ir.Value:
        """A value in a way that has to wait for a gradient."""
        assert x is not None and x.shape is not None, "see `_Plan`"  # noqa: S101, PT018
        key = gradient, len(x.shape)
        if key not in self._zeros:
            self._zeros[key] = maker.op("Min", maker.int64([0] * len(x.shape)), maker.op("Size", gradient))
        result = maker.op("Reshape", x, self._zeros[key])
        result.type, result.shape = x.type, x.shape
        return result


def _is_small(value: ir.Value) -> bool:
    """Tests whether a value has the parameters of channels, or an unknown shape."""
    return value.shape is None or len(value.shape) <= 1
