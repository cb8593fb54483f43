"""RNN: onnx's reference evaluator has only the activation Tanh, and one for both directions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bngrad.validation.training_ops._types import Array

_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "Relu": lambda x: np.maximum(x, 0),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Tanh": np.tanh,
}
_REVERSED = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def rnn(
    X: Array,
    W: Array,
    R: Array,
    B: Array | None = None,
    sequence_lens: None = None,
    initial_h: Array | None = None,
    *,
    activations: Sequence[str] = ("Tanh", "Tanh"),
    direction: str = "forward",
    hidden_size: int = 0,  # noqa: ARG001 - R has it
) -> tuple[Array, Array]:
    """Returns H of each step and of the last: H = f(X W^T + H R^T + B_w + B_r)."""
    if sequence_lens is not None:
        raise NotImplementedError("RNN with sequence_lens")
    states, last = [], []
    for number, is_reversed in enumerate(_REVERSED[direction]):
        activation = _ACTIVATIONS[activations[number]]
        w, r = W[number], R[number]
        h = np.zeros((X.shape[1], r.shape[1]), X.dtype) if initial_h is None else initial_h[number]
        bias = 0 if B is None else np.add(*np.split(B[number], 2))
        steps = []
        for x in X[::-1] if is_reversed else X:
            h = activation(x @ w.T + h @ r.T + bias)
            steps.append(h)
        states.append(np.stack(steps[::-1] if is_reversed else steps))
        last.append(h)
    return np.stack(states, axis=1), np.stack(last)
