"""The steps of a backward loop: a Scan in the other direction, or a Loop with as many steps as were done."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from bngrad.graph.node_makers import NodesAtEnd, nodes_at_start
from bngrad.opset.gradient_names import gradient_node_prefix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.control_flow.body_copy import BodyCopy
    from bngrad.autodiff.control_flow.repetition import Repetition, Slices


class Steps(abc.ABC):
    """The inputs of a backward loop; its body has the next states as its first outputs.

    Args:
        back: The forward node.
        loop: The same.
        copy: The body.
    """

    def __init__(self, back: Backward, loop: Repetition, copy: BodyCopy) -> None:
        self._back = back
        self._loop = loop
        self._copy = copy
        self._states: list[tuple[ir.Value, ir.Value]] = []
        self._sequences: list[tuple[ir.Value, ir.Value, Slices]] = []

    def state(self, first: ir.Value, word: str, like: ir.Value) -> ir.Value:
        """Adds a state, and returns its value in the body.

        Args:
            first: The state before the first step.
            word: The end of its name.
            like: A value of its type and shape.
        """
        value = self._copy.input(word, like)
        self._states.append((first, value))
        return value

    def feed(self, value: ir.Value, sequence: ir.Value, slices: Slices) -> None:
        """Lets a value of the body be an element of a sequence, which the forward loop made or read.

        Args:
            value: The value, which no node of the body makes.
            sequence: The sequence.
            slices: The elements that the forward loop has in its steps.
        """
        self._sequences.append((value, sequence, slices))

    def keep(self, value: ir.Value, word: str) -> ir.Value:
        """Adds a scan output to the forward loop: an input of its body in each step."""
        names, prefix = self._back.names, f"{gradient_node_prefix(str(self._back.node.name))}{word}"
        copy = NodesAtEnd(self._loop.body, names, prefix).op("Identity", value)
        result = self._loop.add_scan_output(copy, value, names.fresh(f"{prefix}_of_steps"))
        for index, output in enumerate(self._loop.node.outputs):
            output.name = output.name or names.fresh(f"{prefix}_output_{index}")  # none before it may be left out
        return result

    @abc.abstractmethod
    def feed_counters(self, values: Sequence[ir.Value]) -> None:
        """Lets values of the body be the iteration and the condition of the forward step, if it has them."""

    @abc.abstractmethod
    def run(self, states: int, elements: Sequence[Slices]) -> Sequence[ir.Value]:
        """Makes the loop, and returns the last states, and the sequences of the other outputs of its body.

        Args:
            states: The number of states.
            elements: For each other output, the elements that the forward loop reads in its steps.
        """


class ScanSteps(Steps):
    """The steps of a Scan."""

    def feed_counters(self, values: Sequence[ir.Value]) -> None:
        """A Scan has none."""

    def run(self, states: int, elements: Sequence[Slices]) -> Sequence[ir.Value]:
        """Makes a Scan."""
        if not self._sequences:  # its length is the number of steps
            index = self._loop.element_inputs[0]
            unused = self._copy.input("unused", self._loop.body.inputs[index])
            self.feed(unused, self._back.x(index), self._loop.slices_of_input(index))
        values = [value for _, value in self._states] + [value for value, _, _ in self._sequences]
        inputs = [first for first, _ in self._states] + [sequence for _, sequence, _ in self._sequences]
        attributes: dict[str, Any] = {
            "body": self._copy.finish(values),
            "num_scan_inputs": len(self._sequences),
            **_directions("input", [slices for _, _, slices in self._sequences]),
            **_directions("output", elements),
        }
        words = [f"scan_{index}" for index in range(states + len(elements))]
        return self._back.outputs_of("Scan", *inputs, outputs=words, **attributes)


def _directions(which: str, sequences: Sequence[Slices]) -> dict[str, list[int]]:
    if not sequences:
        return {}
    return {
        f"scan_{which}_axes": [slices.axis for slices in sequences],
        f"scan_{which}_directions": [int(not slices.backward) for slices in sequences],
    }


class LoopSteps(Steps):
    """The steps of a Loop: ONNX Runtime's Scan does not run without any step."""

    def __init__(self, back: Backward, loop: Repetition, copy: BodyCopy) -> None:
        super().__init__(back, loop, copy)
        self._counters: Sequence[ir.Value] = ()

    def feed_counters(self, values: Sequence[ir.Value]) -> None:
        """Remembers the iteration and the condition."""
        self._counters = values

    def run(self, states: int, elements: Sequence[Slices]) -> Sequence[ir.Value]:
        """Makes a Loop, which has no other outputs."""
        back = self._back
        kept = [sequence for _, sequence, _ in self._sequences] or [
            self.keep(self._loop.body.inputs[0], "iteration")
        ]
        count = back.op("Squeeze", back.op("Shape", kept[0], start=0, end=1), back.int64([0]))
        iteration = self._counter("iteration", ir.DataType.INT64)
        condition = self._counter("condition", ir.DataType.BOOL)
        make = nodes_at_start(self._copy.graph, back.names, f"{gradient_node_prefix(str(back.node.name))}step")
        step = make.op("Sub", make.op("Sub", count, make.int64(1)), iteration)
        for value, sequence, slices in self._sequences:
            element = make.op("Gather", sequence, step, axis=slices.axis)
            element.type, element.shape = value.type, value.shape
            value.replace_all_uses_with(element)
        for value, current in zip(self._counters, (step, make.constant(True, ir.DataType.BOOL)), strict=True):
            if value.uses():
                rank = 0 if value.shape is None else len(value.shape)
                value.replace_all_uses_with(
                    make.op("Reshape", current, make.int64([1] * rank)) if rank else current
                )
        goes_on = self._copy.make.op("Identity", condition)
        graph = self._copy.finish([iteration, condition, *(value for _, value in self._states)])
        graph.outputs[:] = [goes_on, *graph.outputs]
        words = [f"loop_{index}" for index in range(states + len(elements))]
        return back.outputs_of(
            "Loop", count, None, *(first for first, _ in self._states), outputs=words, body=graph
        )

    def _counter(self, word: str, dtype: ir.DataType) -> ir.Value:
        return self._copy.input(word, ir.Value(type=ir.TensorType(dtype), shape=ir.Shape([])))
