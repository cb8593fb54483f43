"""Copies of bodies, in which the forward values are computed again for the gradient nodes after them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from bngrad.graph.constant_value import RANDOM_OPS
from bngrad.graph.node_makers import NodesAtEnd
from bngrad.graph.node_reader import dtype_of, is_off
from bngrad.graph.nodes import ORIGIN, describe, is_read
from bngrad.graph.shapes import zeros
from bngrad.graph.subgraphs import detach, nodes_of, subgraphs
from bngrad.opset.gradient_names import gradient_node_prefix

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bngrad.autodiff.backward import Backward
    from bngrad.graph.builder import NodeMaker


_RANDOM_WORDS = ("Dropout", "Random", "Sampling")


class BodyCopy:
    """A copy of a body of a node, to which gradient nodes are added.

    Its values and nodes have the names of the body until it is finished, so that messages have them.

    Args:
        back: The node.
        body: The body.
    """

    def __init__(self, back: Backward, body: ir.Graph) -> None:
        self._back = back
        self.graph = body.clone(allow_outer_scope_values=True)
        self._copies = list(nodes_of(self.graph)), list(_values_of(self.graph))
        self.graph.name = back.names.fresh(f"{body.name}_grad")
        self.make = NodesAtEnd(self.graph, back.names, f"{gradient_node_prefix(str(back.node.name))}body")
        self._results = [_typed(self.make.op("Identity", value), value) for value in self.graph.outputs]

    def result(self, index: int) -> ir.Value:
        """Returns a value that equals an output of the body, and that nothing reads."""
        return self._results[index]

    def input(self, word: str, like: ir.Value) -> ir.Value:
        """Returns a new value, for the inputs, of the type and shape of another."""
        return _typed(ir.Value(name=self.make.names.fresh(f"{self._back.node.name}_Grad/{word}")), like)

    def discard(self) -> None:
        """Removes all nodes, which count as readers of their inputs otherwise."""
        self.set_outputs([])

    def finish(self, inputs: Sequence[ir.Value]) -> ir.Graph:
        """Returns the graph with other inputs, and new names."""
        nodes, values = self._copies
        for node in nodes:
            node.meta[ORIGIN] = describe(node)
            node.name = self._back.names.fresh(str(node.name))
        for value in values:
            if value.name:
                value.const_value = None  # else the tensor, which the copy shares with the model, is renamed
                value.name = self._back.names.fresh(value.name)
        self.graph.inputs[:] = inputs
        return self.graph

    def set_outputs(self, outputs: Sequence[ir.Value]) -> None:
        """Changes the outputs, and removes the nodes that these do not need.

        Raises:
            NoGradientError: What is left draws random numbers, other ones than the forward body drew.
        """
        self.graph.outputs[:] = outputs
        for node in reversed(list(self.graph)):
            if not any(map(is_read, node.outputs)):
                detach([node])
                self.graph.remove(node)
        for node in nodes_of(self.graph):
            if _draws(node):
                self._back.refuse(
                    f"its gradient would draw the random numbers of {describe(node)}, in its body, once more; "
                    "expected a body without random ops"
                )


def require_tensors(back: Backward, values: Iterable[ir.Value]) -> None:
    """Refuses a node one of whose values with a gradient is a sequence or optional.

    Raises:
        NoGradientError: There is one.
    """
    for value in values:
        if value.type is not None and not isinstance(value.type, ir.TensorType):
            back.refuse(f"its value {value.name!r} is no tensor, but {value.type}; expected a tensor")


def zeros_like(make: NodeMaker, value: ir.Value) -> ir.Value:
    """Returns zeros of the type and shape of a value, which may have any rank."""
    dtype, shape = dtype_of(value), make.op("Shape", value)
    if dtype == ir.DataType.BFLOAT16:  # ConstantOfShape takes it from opset 20 on
        return _typed(zeros(make, shape, dtype), value)
    zero = ir.tensor(np.zeros(1, dtype.numpy()), dtype=dtype)
    return _typed(make.op("ConstantOfShape", shape, value=zero), value)


def _typed(value: ir.Value, like: ir.Value) -> ir.Value:
    value.type, value.shape = like.type, like.shape
    return value


def _values_of(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yields the inputs of a graph and of its subgraphs, and the outputs of their nodes."""
    yield from graph.inputs
    for node in graph:
        yield from node.outputs
        for body in subgraphs(node):
            yield from _values_of(body)


def _draws(node: ir.Node) -> bool:
    """Returns whether a node may draw random numbers; an op of another domain by its name, as BiasDropout."""
    if node.domain:
        return any(word in node.op_type for word in _RANDOM_WORDS) and not node.op_type.endswith("Grad")
    if node.op_type not in RANDOM_OPS:
        return False
    return node.op_type != "Dropout" or not is_off(node.inputs[2] if len(node.inputs) > 2 else None)
