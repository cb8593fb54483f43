"""A Loop or a Scan as a body that is repeated: which inputs and outputs of node and body belong together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import onnx_ir as ir

from bngrad.graph.node_reader import read_attribute

if TYPE_CHECKING:
    from collections.abc import Sequence


class Slices(NamedTuple):
    """The way that a sequence is taken apart into the elements of the steps, or put together."""

    axis: int
    backward: bool
    """True if the first step has the last element."""


IN_ORDER = Slices(0, backward=False)


class Repetition(NamedTuple):
    """A Loop or Scan node and its body.

    Output k of the node is that of the body's output ``lead + k``, input k that of the body's input k.
    """

    node: ir.Node
    body: ir.Graph
    first: int
    """The index of the first state among the inputs: a Loop has its trip count and condition before."""
    lead: int
    """The number of outputs of the body before those of the node: the condition of a Loop."""
    states: int
    """The number of states; they are the first outputs of the node."""

    @property
    def state_inputs(self) -> range:
        """The indices of the states among the inputs of node and body, in the order of the outputs."""
        return range(self.first, self.first + self.states)

    @property
    def element_inputs(self) -> range:
        """The indices of the scan inputs; a Loop has none."""
        return range(self.first + self.states, len(self.body.inputs))

    @property
    def scan_outputs(self) -> range:
        """The indices of the outputs of the node that have an element of each step."""
        return range(self.states, len(self.body.outputs) - self.lead)

    def result(self, index: int) -> ir.Value:
        """Returns the value of the body that becomes an output of the node, or the next state."""
        return self.body.outputs[self.lead + index]

    def slices_of_input(self, index: int) -> Slices:
        """Returns how a scan input is taken apart."""
        return self._slices("scan_input", index - self.element_inputs.start)

    def slices_of_output(self, index: int) -> Slices:
        """Returns how a scan output is put together."""
        return self._slices("scan_output", index - self.states)

    def _slices(self, which: str, number: int) -> Slices:
        axes, directions = (_numbers(self.node, f"{which}_{what}") for what in ("axes", "directions"))
        return Slices(axes[number] if axes else 0, bool(directions[number]) if directions else False)

    def add_scan_output(self, value: ir.Value, element: ir.Value, name: str) -> ir.Value:
        """Adds an output with an element of each step to the node.

        Args:
            value: The value of the body, made by a node of its own.
            element: The value whose type and shape it has.
            name: The name of the output.

        Returns:
            The output.
        """
        value.type, value.shape = element.type, element.shape
        self.body.outputs.append(value)
        self.node.resize_outputs(len(self.body.outputs) - self.lead)
        for which, default in (("axes", 0), ("directions", 0)):
            key = f"scan_output_{which}"
            if numbers := _numbers(self.node, key):
                self.node.attributes[key] = ir.AttrInt64s(key, [*numbers, default])
        result = self.node.outputs[-1]
        result.name, result.type = name, element.type
        result.shape = None if element.shape is None else ir.Shape([None, *element.shape])
        return result


def repetition(node: ir.Node) -> Repetition | None:
    """Returns a Loop or Scan of the default domain as a repetition; None for another node.

    None also for one that is not valid: whose body has other inputs or outputs than it needs.
    """
    if node.domain or node.op_type not in ("Loop", "Scan"):
        return None
    body = body_of(node, "body")
    if body is None:
        return None
    count = len(body.inputs)
    if node.op_type == "Loop":
        loop = Repetition(node, body, 2, 1, count - 2)
        fits = len(node.inputs) == count or (count == loop.first and len(node.inputs) <= count)
    else:
        scanned = int(read_attribute(node, "num_scan_inputs", 1))
        loop = Repetition(node, body, 0, 0, count - scanned)
        fits = scanned > 0 and len(node.inputs) == count
    outputs = len(body.outputs) - loop.lead
    fits &= loop.states >= 0 and loop.states <= outputs and len(node.outputs) <= outputs
    return loop if fits and None not in node.inputs[loop.first :] and _has_valid_slices(loop) else None


def body_of(node: ir.Node, name: str) -> ir.Graph | None:
    """Returns the graph that an attribute of a node is; None if it is none."""
    attribute = node.attributes.get(name)
    if attribute is None or attribute.is_ref() or attribute.type != ir.AttributeType.GRAPH:
        return None
    return attribute.as_graph()


def _has_valid_slices(loop: Repetition) -> bool:
    """Returns whether the attributes of a Scan state the axis and direction of each sequence, or of none."""
    numbers = {"scan_input": len(loop.element_inputs), "scan_output": len(loop.scan_outputs)}
    return loop.node.op_type == "Loop" or all(
        len(_numbers(loop.node, f"{which}_{what}")) in (0, number)
        for which, number in numbers.items()
        for what in ("axes", "directions")
    )


def _numbers(node: ir.Node, name: str) -> Sequence[int]:
    return list(read_attribute(node, name, ()))
