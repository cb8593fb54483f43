"""The steps of a backward loop: a Scan in the other direction, or a Loop with as many steps as were done."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

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
