"""LSTM, GRU and RNN, with and without their optional inputs and outputs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import onnx

if TYPE_CHECKING:
    from gradient_fuzz.sketch import Sketch, Value

ACTIVATIONS = {
    "Affine": 2,
    "Elu": 1,
    "HardSigmoid": 2,
    "LeakyRelu": 1,
    "Relu": 0,
    "ScaledTanh": 2,
    "Sigmoid": 0,
    "Softplus": 0,
    "Softsign": 0,
    "Tanh": 0,
    "ThresholdedRelu": 1,
}
"""The activations, and how many of alpha and beta each has."""


def recurrent(b: Sketch, op_type: str, gates: int, states: int) -> list[Value]:
    x = b.of_shape((b.dim(1, 3), b.dim(1, 3), b.dim(1, 3)))
    hidden = b.dim(1, 3)
    layout = b.maybe(b.draw.choice([0, 1]), 0.2) if b.opset >= 14 else None
    direction = b.draw.choice([None, "forward", "reverse", "bidirectional"])
    directions = 2 if direction == "bidirectional" else 1
    steps, batch = x.shape[:2] if not layout else x.shape[1::-1]
    weights = [b.of_shape((directions, gates * hidden, size)) for size in (x.shape[2], hidden)]
    bias = b.maybe(b.of_shape((directions, 2 * gates * hidden)), 0.6)
    lengths = b.constant(b.rng.integers(0, steps + 1, batch), onnx.TensorProto.INT32)
    state = (batch, directions, hidden) if layout else (directions, batch, hidden)
    first = [b.maybe(b.of_shape(state), 0.6) for _ in range(states)]
    outputs = b.draw.choice([1, [False, True], [True, True], [True] * (states + 1), [False] * states + [True]])
    own = {"linear_before_reset": b.maybe(b.draw.choice([0, 1]))} if op_type == "GRU" else {}
    peepholes = None
    if op_type == "LSTM":
        own["input_forget"] = b.maybe(b.draw.choice([0, 1]), 0.3)
        peepholes = b.maybe(b.of_shape((directions, 3 * hidden)), 0.3)
    if b.draw.chance(0.5):
        own |= activations(b, op_type, directions * {"GRU": 2, "LSTM": 3, "RNN": 1}[op_type])
    return b.emit(
        op_type,
        [x, *weights, bias, b.maybe(lengths, 0.4), *first, peepholes],
        outputs,
        hidden_size=hidden,
        direction=direction,
        layout=layout,
        clip=b.maybe(b.draw.choice([0.3, 1.0, 4.0]), 0.3),
        **own,
    )


def activations(b: Sketch, op_type: str, count: int) -> dict[str, object]:
    """Draws activations with their numbers, of RNN one for each direction."""
    names = b.draw.choices(list(ACTIVATIONS), k=count)
    if op_type == "RNN" and {ACTIVATIONS[name] for name in names} != {ACTIVATIONS[names[0]]}:
        names = names[:1] * count
    numbers = [round(b.draw.random() + 0.2, 2) for _ in range(2 * count)]
    alpha, beta = ([*numbers[start::2]] for start in (0, 1))
    if op_type != "RNN":
        names = [name.lower() if b.draw.chance(0.1) else name for name in names]
    return {"activations": names, "activation_alpha": alpha, "activation_beta": beta}


ENTRIES = {
    ("", "GRU"): partial(recurrent, op_type="GRU", gates=3, states=1),
    ("", "LSTM"): partial(recurrent, op_type="LSTM", gates=4, states=2),
    ("", "RNN"): partial(recurrent, op_type="RNN", gates=1, states=1),
}
