"""Gradient nodes of ``ai.onnx.preview.training``: the values that one names, and the reasons to refuse it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from bngrad.graph.batch_norms import SUPPORTED_DTYPES
from bngrad.graph.name_messages import unknown_name
from bngrad.graph.nodes import nodes_behind, owner
from bngrad.graph.shapes import has_one_element
from bngrad.graph.subgraphs import captured_values
from bngrad.opset.known_shapes import type_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import onnx_ir as ir

_DOMAIN = "ai.onnx.preview.training"


def is_gradient_node(node: ir.Node) -> bool:
    """Returns whether a node is a Gradient of ONNX."""
    return (node.domain, node.op_type) == (_DOMAIN, "Gradient")


class GradientRequest:
    """The gradient that a Gradient node stands for.

    Args:
        node: The node; its graph has types.
    """

    def __init__(self, node: ir.Node) -> None:
        self.node = node
        self.xs = list(node.attributes.get_strings("xs", ()))
        """The names of the values to differentiate with respect to."""
        self.names = [*self.xs, *node.attributes.get_strings("zs", ())]
        """The names of the values that y is a function of; the inputs of the node are their values."""
        self.y = node.attributes.get_string("y", "")
        """The name of the value to differentiate."""

    @cached_property
    def values(self) -> dict[str, ir.Value]:
        """The values of the graph by name."""
        graph = owner(self.node)
        computed = (value for node in graph for value in node.outputs if value.name)
        values = (*graph.inputs, *graph.initializers.values(), *computed)
        return {str(value.name): value for value in values}

    @property
    def named(self) -> list[ir.Value]:
        """The values that y is a function of."""
        return [self.values[name] for name in self.names]

    @property
    def wrt(self) -> list[str]:
        """The names of those values whose gradients are outputs of the node."""
        return [x for x, output in zip(self.xs, self.node.outputs, strict=False) if output.name]

    @property
    def is_at_named_values(self) -> bool:
        """True if the inputs of the node are the values that it names."""
        return list(self.node.inputs) == self.named

    @cached_property
    def nodes(self) -> list[ir.Node]:
        """The nodes that compute y from the values that it is a function of, and from others."""
        return slice_before(self.values[self.y], self.named)

    def name_refusal(self) -> str | None:
        """Returns the reason why the names of the node stand for no gradient; None if they stand for one."""
        return next(self._wrong_names(), None)

    def value_refusal(self) -> str | None:
        """Returns the same for the named values, whose types are known once y depends on no other Gradient."""
        return next(self._wrong_values(), None)

    def _wrong_names(self) -> Iterator[str]:
        """Yields reasons for a refusal that the names yield."""
        inputs, outputs = self.node.inputs, self.node.outputs
        if not self.xs or not self.y:
            yield "its attributes xs and y name no values; expected both"
        if not self.wrt:
            yield "none of its outputs has a name; expected at least one"
        if len(inputs) != len(self.names) or len(outputs) > len(self.xs):
            yield (
                f"it has {len(inputs)} inputs and {len(outputs)} outputs; expected an input for each of the "
                f"{len(self.names)} names in xs and zs, and at most an output for each in xs"
            )
        for name in (*self.names, self.y):
            if name not in self.values:
                yield unknown_name(name, self.values, "a value")
            if [*self.names, self.y].count(name) > 1:
                yield f"its attributes xs, zs and y name {name!r} twice; expected each value once"

    def _wrong_values(self) -> Iterator[str]:
        """Yields reasons for a refusal that the named values yield."""
        y = self.values[self.y]
        if y.dtype not in SUPPORTED_DTYPES or not has_one_element(y):
            yield f"its y, {self.y!r} ({type_text(y)}), is no float of one element; expected its sum or its mean"
        for value, operand in zip(self.named, self.node.inputs, strict=True):
            if operand is None or operand.dtype != value.dtype:
                text = "missing" if operand is None else type_text(operand)
                yield f"its input for {value.name!r} ({type_text(value)}) is {text}; expected the same type"
            for other in self._others_before(value):
                yield f"its xs and zs name {value.name!r}, which is computed from {other!r}; expected only one"
            if value.producer() in self.nodes:
                yield f"its xs and zs name {value.name!r}, a result of a node that computes y; expected its inputs"

    def _others_before(self, value: ir.Value) -> Iterator[str]:
        operands = {
            operand for node in slice_before(value, ()) for operand in (*node.inputs, *captured_values(node))
        }
        yield from (str(other.name) for other in self.named if other in operands)


def slice_before(value: ir.Value, stops: Iterable[ir.Value]) -> list[ir.Node]:
    """Returns the nodes that a value is computed by, in the order of the graph.

    Args:
        value: A value of a graph.
        stops: Values of the graph before which no nodes are followed.
    """
    nodes = nodes_behind([value], stops)
    graph = value.graph
    return [] if graph is None else [node for node in graph if node in nodes]
