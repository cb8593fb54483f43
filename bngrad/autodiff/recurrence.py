"""Common parts of the gradients of recurrent ops: directions, a Scan over the steps, the gradients of weights.

Where a sequence is over, its state stays. In the reverse direction that is at the beginning: the state is the
first one until the last element of the sequence. So no sequence has to be moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx_ir as ir

from bngrad.graph.builder import NodeMaker
from bngrad.graph.node_reader import dtype_of, like

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients
    from bngrad.graph.fresh_names import Names

REVERSED = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
"""The directions of each mode: True for one from the last step to the first."""

_INPUTS = ("x", "w", "r", "b", "lengths", "h", "c", "p")
_LENGTHS = 4
"""The index of sequence_lens."""


class Direction(NamedTuple):
    """One direction of a node, with the sequence in the order of its steps."""

    back: Backward
    number: int
    is_reversed: bool
    goes_on: ir.Value | None
    """True where a sequence is not yet over, [T + 1, N, 1]; None if all have the same length."""
    is_empty: ir.Value | None
    """True where a sequence has the length 0, [N, 1]."""

    def data(self) -> ir.Value:
        """Returns the sequences, with zeros where they are over: what is there may be any number."""
        x = self.sequence(self.back.x(0))
        return self.where_going(x, like(self.back, 0, self.back.x(0)))

    def where_going(self, value: ir.Value, other: ir.Value) -> ir.Value:
        """Returns a sequence, with another value where it is over."""
        return value if self.goes_on is None else self.back.op("Where", self.goes_on, value, other)

    def sequence(self, value: ir.Value) -> ir.Value:
        """Converts values of all steps, along axis 0, to the order of this direction.

        Sequences of unequal lengths get another step, at which all are over: ONNX Runtime has no Scan over none.
        """
        if self.goes_on is not None:
            value = self.back.op("Pad", value, self.back.int64([0, 0, 0, 1, 0, 0]))
        return _flipped(self.back, value) if self.is_reversed else value

    def in_time(self, value: ir.Value) -> ir.Value:
        """Converts values of all steps back to the order of time."""
        if self.is_reversed:
            value = _flipped(self.back, value)
        if self.goes_on is None:
            return value
        return self.back.op("Slice", value, *(self.back.int64([number]) for number in (0, -1, 0)))

    def own(self, value: ir.Value, axis: int = 0) -> ir.Value:
        """Returns the part of a value that belongs to this direction."""
        return self.back.op("Gather", value, self.back.int64(self.number), axis=axis)

    def optional(self, index: int, like_this: ir.Value) -> ir.Value:
        """Returns this direction's part of an optional input; zeros where it is left out."""
        return self.own(self.back.x(index)) if self.back.has(index) else zeros(self.back, like_this)

    def states(self, index: int = 5) -> tuple[ir.Value, ir.Value]:
        """Returns the first hidden state, [N, H], and those after all steps, [T, N, H]."""
        after = self.sequence(self.own(self.back.y(0), axis=1))
        first = self.optional(index, self.back.op("Gather", after, self.back.int64(0), axis=0))
        return first, self.where_going(after, first)

    def before(self, first: ir.Value, states: ir.Value) -> ir.Value:
        """Returns the states before all steps: the first one, and the states after all steps except the last."""
        back = self.back
        first = back.op("Unsqueeze", first, back.int64([0]))
        rest = back.op("Slice", states, *(back.int64([number]) for number in (0, -1, 0)))
        return back.op("Concat", first, rest, axis=0)

    def of_states(self, states: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Returns the gradients of the two outputs: the hidden states of all steps, and the last state."""
        dY, dY_h, *_ = (*self.back.all_dY, None)
        of_all = zeros(self.back, states) if dY is None else self.sequence(self.own(dY, axis=1))
        return of_all, self.of_last(dY_h, states)

    def of_last(self, gradient: ir.Value | None, states: ir.Value) -> ir.Value:
        """Returns the gradient of a state after the last step, [N, H]; zeros if it is None."""
        if gradient is None:
            return zeros(self.back, self.back.op("Gather", states, self.back.int64(0), axis=0))
        own = self.own(gradient)
        if self.is_empty is None:
            return own
        return self.back.op("Where", self.is_empty, like(self.back, 0, self.back.x(0)), own)

    def linear(self, value: ir.Value, weights: ir.Value, bias: ir.Value | None) -> ir.Value:
        """Returns the product of a sequence with transposed weights, plus a bias."""
        product = self.back.op("MatMul", value, self.back.op("Transpose", weights, perm=[1, 0]))
        return product if bias is None else self.back.op("Add", product, bias)

    def biases(self, count: int) -> Sequence[ir.Value | None]:
        """Returns the two biases, split into ``count`` parts; None for each if the node has none."""
        if not self.back.has(3):
            return [None] * count
        names = [f"bias_{index}" for index in range(count)]
        return self.back.outputs_of("Split", self.own(self.back.x(3)), outputs=names, axis=0, num_outputs=count)


def directions(back: Backward) -> list[Direction]:
    """Returns the directions of a node."""
    name = str(back.attribute("direction", "forward"))
    goes_on = is_empty = None
    if back.has(_LENGTHS):
        lengths = back.op("Unsqueeze", back.cast(back.x(_LENGTHS), ir.DataType.INT64), back.int64([1]))
        is_empty = back.op("Equal", lengths, back.int64(0))
        steps = back.op("Gather", back.op("Shape", back.x(0)), back.int64(0))
        more = back.op("Add", steps, back.int64(1))
        times = back.op("Range", back.int64(0), more, back.int64(1))
        goes_on = back.op("Less", back.op("Unsqueeze", times, back.int64([1, 2])), lengths)
        goes_on.dtype = ir.DataType.BOOL
    return [
        Direction(
            back,
            number,
            is_reversed,
            _flipped(back, goes_on) if is_reversed and goes_on is not None else goes_on,
            is_empty,
        )
        for number, is_reversed in enumerate(REVERSED[name])
    ]


def with_lengths(direction: Direction, sequences: Sequence[ir.Value]) -> list[ir.Value]:
    """Returns sequences that a Scan reads, followed by the one for the input that `Body.going` adds."""
    return [*sequences, *([] if direction.goes_on is None else [direction.goes_on])]


class Body(NodeMaker):
    """The nodes of one step of a Scan; values of the main graph may be read, too.

    Args:
        names: The names of the model.
        prefix: The beginning of all names.
    """

    def __init__(self, names: Names, prefix: str) -> None:
        super().__init__(names, prefix)
        self._nodes: list[ir.Node] = []
        self._inputs: list[ir.Value] = []

    def _place(self, node: ir.Node) -> None:
        self._nodes.append(node)

    def input(self, word: str, like_this: ir.Value) -> ir.Value:
        """Adds the next input: the states, then the elements of the sequences."""
        value = ir.Value(name=self.names.fresh(f"{self._prefix}_{word}"), type=ir.TensorType(dtype_of(like_this)))
        self._inputs.append(value)
        return value

    def going(self, direction: Direction) -> ir.Value | None:
        """Adds the input that says which sequences are not yet over; None if all have the same length."""
        return None if direction.goes_on is None else self.input("goes_on", direction.goes_on)

    def where(self, condition: ir.Value | None, value: ir.Value, other: ir.Value) -> ir.Value:
        """Returns a value, and another one where a condition is false; None is true."""
        return value if condition is None else self.op("Where", condition, value, other)

    def zero_where_over(self, goes_on: ir.Value | None, value: ir.Value, typed: ir.Value) -> ir.Value:
        """Returns a value of the same type as another one, with zeros where a sequence is over."""
        return value if goes_on is None else self.op("Where", goes_on, value, like(self, 0, typed))

    def scan(
        self,
        back: Backward,
        states: Sequence[ir.Value],
        sequences: Sequence[ir.Value],
        outputs: Sequence[ir.Value],
        *,
        reverse: bool,
    ) -> Sequence[ir.Value]:
        """Makes the Scan, and returns the last states and the sequences of its outputs.

        The order is reversed by Slices: onnx's reference evaluator has no Scan from the end.

        Args:
            back: The node that the Scan is for.
            states: The first states.
            sequences: The sequences of which each step reads an element.
            outputs: The outputs of the body: the next states, and the elements of the sequences that it computes.
            reverse: Whether the steps go from the end of all sequences to their beginning.
        """
        graph = ir.Graph(self._inputs, outputs, nodes=self._nodes, name=self.names.fresh(f"{self._prefix}_body"))
        if reverse:
            sequences = [_flipped(back, value) for value in sequences]
        results = back.outputs_of(
            "Scan",
            *states,
            *sequences,
            outputs=[f"scan_{index}" for index in range(len(outputs))],
            body=graph,
            num_scan_inputs=len(sequences),
        )
        count = len(states)
        return [*results[:count], *(_flipped(back, value) if reverse else value for value in results[count:])]


def _flipped(back: Backward, value: ir.Value) -> ir.Value:
    """Reverses the order of the steps of a sequence."""
    end = np.iinfo(np.int64).min
    result = back.op("Slice", value, *(back.int64([number]) for number in (-1, end, 0, -1)))
    if value.dtype is not None:
        result.dtype = value.dtype
    return result


def zeros(back: Backward, value: ir.Value) -> ir.Value:
    """Returns zeros in the shape of a value."""
    zero = ir.tensor(np.zeros(1, dtype_of(back.x(0)).numpy()), dtype=dtype_of(back.x(0)))
    return back.op("ConstantOfShape", back.op("Shape", value), value=zero)


def outer(back: Backward, d: ir.Value, value: ir.Value) -> ir.Value:
    """Returns the sum of the outer products over all steps and samples."""
    d, value = (back.op("Flatten", operand, axis=2) for operand in (d, value))
    return back.op("MatMul", back.op("Transpose", d, perm=[1, 0]), value)


def of_weights(
    direction: Direction, x: ir.Value, h: ir.Value, of_x: ir.Value, of_h: ir.Value, w: ir.Value
) -> dict[str, ir.Value]:
    """Returns the gradients of the input, the weights and the biases, from those of the sums with x and with H."""
    back = direction.back
    biases = [back.op("ReduceSum", d, back.int64([0, 1]), keepdims=0) for d in (of_x, of_h)]
    return {
        "x": direction.in_time(back.op("MatMul", of_x, w)),
        "w": outer(back, of_x, x),
        "r": outer(back, of_h, h),
        "b": back.op("Concat", *biases, axis=0),
    }


def combined(back: Backward, parts: Sequence[dict[str, ir.Value]]) -> Gradients:
    """Combines the gradients of all directions: a sum for x, and for the other inputs a concatenation."""
    gradients: list[ir.Value | None] = []
    for index, name in enumerate(_INPUTS[: len(back.node.inputs)]):
        if not back.needs(index):
            gradients.append(None)
        elif index == 0:
            values = [part[name] for part in parts]
            gradients.append(values[0] if len(values) == 1 else back.op("Add", *values))
        else:
            values = [back.op("Unsqueeze", part[name], back.int64([0])) for part in parts]
            gradients.append(values[0] if len(values) == 1 else back.op("Concat", *values, axis=0))
    return gradients + [None] * (len(back.node.inputs) - len(gradients))
