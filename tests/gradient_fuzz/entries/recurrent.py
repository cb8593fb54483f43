"""LSTM, GRU and RNN, with and without their optional inputs and outputs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradient_fuzz.sketch import Sketch, Value


def recurrent(b: Sketch, op_type: str, gates: int, states: int) -> list[Value]:
    x = b.of_shape((b.dim(1, 3), b.dim(1, 3), b.dim(1, 3)))
    hidden = b.dim(1, 3)
    direction = b.draw.choice([None, "forward", "reverse", "bidirectional"])
    directions = 2 if direction == "bidirectional" else 1
    weights = [b.of_shape((directions, gates * hidden, size)) for size in (x.shape[2], hidden)]
    bias = b.maybe(b.of_shape((directions, 2 * gates * hidden)), 0.6)
    first = [b.maybe(b.of_shape((directions, x.shape[1], hidden)), 0.6) for _ in range(states)]
    outputs = b.draw.choice([1, [False, True], [True, True], [True] * (states + 1), [False] * states + [True]])
    own = {"linear_before_reset": b.maybe(b.draw.choice([0, 1]))} if op_type == "GRU" else {}
    if op_type == "RNN":
        own["activations"] = b.maybe(b.draw.choices(["Tanh", "Relu", "Sigmoid"], k=directions))
    return b.emit(
        op_type, [x, *weights, bias, None, *first], outputs, hidden_size=hidden, direction=direction, **own
    )


ENTRIES = {
    ("", "GRU"): partial(recurrent, op_type="GRU", gates=3, states=1),
    ("", "LSTM"): partial(recurrent, op_type="LSTM", gates=4, states=2),
    ("", "RNN"): partial(recurrent, op_type="RNN", gates=1, states=1),
}
