"""LSTM, GRU and RNN, step by step.

Where a sequence is over, the state stays and the output is 0. The last states of a sequence of length 0 are 0, as
ONNX Runtime returns them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from bngrad.torch.autograd.table import UnsupportedFormError, op

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

State: TypeAlias = tuple[Tensor, ...]
_FUNCTIONS: dict[str, tuple[Callable[..., Tensor], tuple[float, ...]]] = {
    "affine": (lambda x, a, b: a * x + b, (1.0, 0.0)),
    "elu": (functional.elu, (1.0,)),
    "hardsigmoid": (lambda x, a, b: torch.clamp(a * x + b, 0, 1), (0.2, 0.5)),
    "leakyrelu": (functional.leaky_relu, (0.01,)),
    "relu": (torch.relu, ()),
    "scaledtanh": (lambda x, a, b: a * torch.tanh(b * x), (1.0, 1.0)),
    "sigmoid": (torch.sigmoid, ()),
    "softplus": (functional.softplus, ()),
    "softsign": (functional.softsign, ()),
    "tanh": (torch.tanh, ()),
    "thresholdedrelu": (lambda x, a: functional.threshold(x, a, 0), (1.0,)),
}
"""The activations, and the defaults of their alpha and beta."""


class _Activations:
    """The activations of all directions; each takes the next alpha and beta if it has them."""

    def __init__(
        self,
        names: Sequence[str] | None,
        default: Sequence[str],
        directions: int,
        numbers: tuple[Sequence[float] | None, Sequence[float] | None],
    ) -> None:
        names = list(names or list(default) * directions)
        if unknown := [name for name in names if name.lower() not in _FUNCTIONS]:
            raise UnsupportedFormError(f"it has the activation {unknown[0]}; expected {', '.join(_FUNCTIONS)}")
        left = [list(numbers[0] or ()), list(numbers[1] or ())]
        self._count, self._functions = len(default), [self._next(name.lower(), left) for name in names]

    @staticmethod
    def _next(name: str, left: list[list[float]]) -> Callable[[Tensor], Tensor]:
        function, defaults = _FUNCTIONS[name]
        numbers = [
            numbers.pop(0) if numbers else default for numbers, default in zip(left, defaults, strict=False)
        ]
        return lambda x: function(x, *numbers)

    def __getitem__(self, direction: int) -> list[Callable[[Tensor], Tensor]]:
        return self._functions[self._count * direction : self._count * (direction + 1)]


def _run(
    x: Tensor,
    lengths: Tensor | None,
    firsts: Sequence[Tensor | None],
    r: Tensor,
    direction: str,
    layout: int,
    step: Callable[[int, Tensor, State], State],
) -> tuple[Tensor, ...]:
    """Runs the steps in each direction; returns Y and the last states."""
    if layout:
        x = x.transpose(0, 1)
        firsts = [None if first is None else first.transpose(0, 1) for first in firsts]
    steps, batch = x.shape[:2]
    zeros = x.new_zeros(r.shape[0], batch, r.shape[2])
    states = [zeros if first is None else first for first in firsts]
    valid = torch.full((batch,), steps) if lengths is None else lengths.long()
    ways = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    outputs, lasts = [], []
    for index, backward in enumerate(ways):
        state: State = tuple(initial[index] for initial in states)
        hidden = [torch.zeros_like(state[0])] * steps
        for time in reversed(range(steps)) if backward else range(steps):
            going = (time < valid).unsqueeze(1)
            # Padding may be NaN, and so would be its gradient.
            new = step(index, torch.where(going, x[time], 0.0), state)
            state = tuple(torch.where(going, updated, old) for updated, old in zip(new, state, strict=True))
            hidden[time] = torch.where(going, state[0], torch.zeros_like(state[0]))
        outputs.append(torch.stack(hidden) if hidden else zeros[:0])
        started = (valid > 0).unsqueeze(1)
        lasts.append(tuple(torch.where(started, last, torch.zeros_like(last)) for last in state))
    y, last = torch.stack(outputs, 1), [torch.stack(states) for states in zip(*lasts, strict=True)]
    if layout:
        return y.permute(2, 0, 1, 3), *(state.transpose(0, 1) for state in last)
    return y, *last


def _clipped(value: Tensor, clip: float | None) -> Tensor:
    return value if clip is None else torch.clamp(value, -clip, clip)


def _biases(b: Tensor | None, w: Tensor) -> tuple[Tensor, Tensor]:
    return (w.new_zeros(w.shape[:2]),) * 2 if b is None else (b[:, : w.shape[1]], b[:, w.shape[1] :])


@op("RNN", since=7)
def rnn(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    h0: Tensor | None = None,
    *,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,  # noqa: ARG001 - that of r
    layout: int = 0,
) -> tuple[Tensor, ...]:
    """H' = f(x W + H R + B)."""
    numbers = activation_alpha, activation_beta
    functions = _Activations(activations, ["Tanh"], w.shape[0], numbers)
    of_x, of_h = _biases(b, w)

    def step(index: int, x: Tensor, state: State) -> State:
        total = x @ w[index].T + of_x[index] + state[0] @ r[index].T + of_h[index]
        return (functions[index][0](_clipped(total, clip)),)

    return _run(x, lengths, [h0], r, direction, layout, step)


@op("LSTM", since=7)
def lstm(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    h0: Tensor | None = None,
    c0: Tensor | None = None,
    peepholes: Tensor | None = None,
    *,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,  # noqa: ARG001 - that of r
    input_forget: int = 0,
    layout: int = 0,
) -> tuple[Tensor, ...]:
    """The gates i, o, f and c of x W + H R + B; C' = f C + i c and H' = o h(C').

    Peepholes add P C to the sums of i and f, and P C' to that of o. With ``input_forget``, f is 1 - i.
    """
    numbers = activation_alpha, activation_beta
    functions = _Activations(activations, ["Sigmoid", "Tanh", "Tanh"], w.shape[0], numbers)
    of_x, of_h = _biases(b, w)
    p = w.new_zeros(w.shape[0], 3 * r.shape[-1]) if peepholes is None else peepholes

    def step(index: int, x: Tensor, state: State) -> State:
        f, g, h = functions[index]
        total = x @ w[index].T + of_x[index] + state[0] @ r[index].T + of_h[index]
        i, o, forget, c = total.chunk(4, -1)
        of_i, of_o, of_f = p[index].chunk(3)
        entry = f(_clipped(i + of_i * state[1], clip))
        kept = 1 - entry if input_forget else f(_clipped(forget + of_f * state[1], clip))
        new = kept * state[1] + entry * g(_clipped(c, clip))
        return f(_clipped(o + of_o * new, clip)) * h(new), new

    return _run(x, lengths, [h0, c0], r, direction, layout, step)


@op("GRU", since=7)
def gru(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    h0: Tensor | None = None,
    *,
    activations: Sequence[str] | None = None,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,  # noqa: ARG001 - that of r
    layout: int = 0,
    linear_before_reset: int = 0,
) -> tuple[Tensor, ...]:
    """The gates z, r and n of x and H; H' = (1 - z) n + z H."""
    numbers = activation_alpha, activation_beta
    functions = _Activations(activations, ["Sigmoid", "Tanh"], w.shape[0], numbers)
    of_x, of_h = _biases(b, w)
    size = r.shape[-1]

    def step(index: int, x: Tensor, state: State) -> State:
        f, g = functions[index]
        (old,) = state
        from_x = x @ w[index].T + of_x[index]
        both = from_x[:, : 2 * size] + old @ r[index][: 2 * size].T + of_h[index][: 2 * size]
        z, reset = f(_clipped(both, clip)).chunk(2, -1)
        weight, bias = r[index][2 * size :], of_h[index][2 * size :]
        candidate = reset * (old @ weight.T + bias) if linear_before_reset else (reset * old) @ weight.T + bias
        n = g(_clipped(from_x[:, 2 * size :] + candidate, clip))
        return ((1 - z) * n + z * old,)

    return _run(x, lengths, [h0], r, direction, layout, step)
