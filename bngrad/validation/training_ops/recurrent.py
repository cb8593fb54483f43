"""LSTM, GRU and RNN: onnx's reference evaluator ignores lengths, clip, coupled gates and most activations.

Where a sequence is over, the state stays and the output is 0. The last states of a sequence of length 0 are 0, as
ONNX Runtime returns them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bngrad.validation.training_ops._types import Array

    Activation: TypeAlias = Callable[[Array], Array]
    State: TypeAlias = tuple[Array, ...]

_FUNCTIONS: dict[str, tuple[Callable[..., Array], tuple[float, ...]]] = {
    "affine": (lambda x, a, b: a * x + b, (1.0, 0.0)),
    "elu": (lambda x, a: np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0))), (1.0,)),
    "hardsigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), (0.2, 0.5)),
    "leakyrelu": (lambda x, a: np.where(x >= 0, x, a * x), (0.01,)),
    "relu": (lambda x: np.maximum(x, 0), ()),
    "scaledtanh": (lambda x, a, b: a * np.tanh(b * x), (1.0, 1.0)),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), ()),
    "softplus": (lambda x: np.logaddexp(x, 0), ()),
    "softsign": (lambda x: x / (1 + np.abs(x)), ()),
    "tanh": (np.tanh, ()),
    "thresholdedrelu": (lambda x, a: np.where(x > a, x, 0), (1.0,)),
}
"""The activations, and the defaults of their alpha and beta."""
_REVERSED = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def _activations(names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]) -> list[Activation]:
    """Returns the activations; each takes the next alpha and beta if it has them."""
    left = (list(alphas), list(betas))
    results: list[Activation] = []
    for name in names:
        function, defaults = _FUNCTIONS[name.lower()]
        numbers = [
            numbers.pop(0) if numbers else default for numbers, default in zip(left, defaults, strict=False)
        ]
        results.append(partial(_applied, function, numbers))
    return results


def _applied(function: Callable[..., Array], numbers: Sequence[float], x: Array) -> Array:
    return function(x, *numbers)


def _run(
    x: Array,
    lengths: Array | None,
    firsts: Sequence[Array | None],
    shape: tuple[int, ...],
    direction: str,
    step: Callable[[int, Array, State], State],
    *,
    layout: int,
) -> tuple[Array, ...]:
    """Runs the steps of each direction; returns the states after all steps, and the last ones.

    Args:
        x: The sequences.
        lengths: Their lengths.
        firsts: The first states, as many as there are.
        shape: The shape of the recurrent weights.
        direction: The directions.
        step: A function of the number of a direction, an element and the states, to the next states.
        layout: The layout; 1 if the batch comes first.
    """
    if layout:
        x = x.swapaxes(0, 1)
        firsts = [None if first is None else first.swapaxes(0, 1) for first in firsts]
    steps, batch = x.shape[:2]
    zeros = np.zeros((shape[0], batch, shape[-1]), x.dtype)
    valid = np.less.outer(np.arange(steps), np.full(batch, steps) if lengths is None else lengths)[..., None]
    outputs, lasts = [], []
    for number, is_reversed in enumerate(_REVERSED[direction]):
        state = tuple(zeros[number] if first is None else first[number] for first in firsts)
        hidden = [zeros[number]] * steps
        for time in reversed(range(steps)) if is_reversed else range(steps):
            new = step(number, x[time], state)
            state = tuple(np.where(valid[time], after, before) for after, before in zip(new, state, strict=True))
            hidden[time] = np.where(valid[time], state[0], 0)
        outputs.append(np.reshape(hidden, (steps, batch, shape[-1])))
        lasts.append([np.where(valid.any(axis=0), last, 0) for last in state])
    y, *last = (np.stack(outputs, 1), *(np.stack(states) for states in zip(*lasts, strict=True)))
    if layout:
        return y.transpose(2, 0, 1, 3), *(state.swapaxes(0, 1) for state in last)
    return y, *last


def _sums(X: Array, w: Array, H: Array, r: Array, bias: Array | float) -> Array:
    return X @ w.T + H @ r.T + bias


def _clip(x: Array, clip: float | None) -> Array:
    return x if clip is None else np.clip(x, -clip, clip)


def rnn(
    X: Array,
    W: Array,
    R: Array,
    B: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    activations: Sequence[str] = ("Tanh", "Tanh"),
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int = 0,  # noqa: ARG001 - R has it
    layout: int = 0,
) -> tuple[Array, ...]:
    """Returns H of each step and of the last: H = f(X W^T + H R^T + B_w + B_r)."""
    functions = _activations(activations, activation_alpha, activation_beta)

    def step(number: int, x: Array, state: State) -> State:
        bias = 0 if B is None else np.add(*np.split(B[number], 2))
        return (functions[number](_clip(_sums(x, W[number], state[0], R[number], bias), clip)),)

    return _run(X, sequence_lens, [initial_h], R.shape, direction, step, layout=layout)


def lstm(
    X: Array,
    W: Array,
    R: Array,
    B: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    P: Array | None = None,
    *,
    activations: Sequence[str] = ("Sigmoid", "Tanh", "Tanh") * 2,
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int = 0,  # noqa: ARG001 - R has it
    input_forget: int = 0,
    layout: int = 0,
) -> tuple[Array, ...]:
    """Returns H of each step, and H and C of the last: C' = f C + i g, H' = o h(C').

    The sums of i and f have the peepholes' P_i C and P_f C, and that of o has P_o C'. The sums are clipped, C' is
    not. With ``input_forget``, f is 1 - i.
    """
    functions = _activations(activations, activation_alpha, activation_beta)

    def step(number: int, x: Array, state: State) -> State:
        f, g, h = functions[3 * number : 3 * number + 3]
        H, C = state
        bias = 0 if B is None else np.add(*np.split(B[number], 2))
        i, o, forget, new = np.split(_sums(x, W[number], H, R[number], bias), 4, axis=-1)
        of_i, of_o, of_f = (0, 0, 0) if P is None else np.split(P[number], 3)
        i = f(_clip(i + of_i * C, clip))
        forget = 1 - i if input_forget else f(_clip(forget + of_f * C, clip))
        C = forget * C + i * g(_clip(new, clip))
        return f(_clip(o + of_o * C, clip)) * h(C), C

    return _run(X, sequence_lens, [initial_h, initial_c], R.shape, direction, step, layout=layout)


def gru(
    X: Array,
    W: Array,
    R: Array,
    B: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    activations: Sequence[str] = ("Sigmoid", "Tanh") * 2,
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int = 0,  # noqa: ARG001 - R has it
    layout: int = 0,
    linear_before_reset: int = 0,
) -> tuple[Array, ...]:
    """Returns H of each step and of the last: H' = (1 - z) n + z H.

    n has the sum X W_n + r (H R_n + B) if ``linear_before_reset``, else X W_n + (r H) R_n + B.
    """
    functions = _activations(activations, activation_alpha, activation_beta)

    def step(number: int, x: Array, state: State) -> State:
        f, g = functions[2 * number : 2 * number + 2]
        (H,) = state
        bias_w, bias_r = np.zeros((2, len(W[number]))) if B is None else np.split(B[number], 2)
        of_x = np.split(x @ W[number].T + bias_w, 3, axis=-1)
        weights, biases = np.split(R[number], 3), np.split(bias_r, 3)
        z, r = (f(_clip(of_x[k] + H @ weights[k].T + biases[k], clip)) for k in (0, 1))
        own = r * (H @ weights[2].T + biases[2]) if linear_before_reset else (r * H) @ weights[2].T + biases[2]
        return ((1 - z) * g(_clip(of_x[2] + own, clip)) + z * H,)

    return _run(X, sequence_lens, [initial_h], R.shape, direction, step, layout=layout)
