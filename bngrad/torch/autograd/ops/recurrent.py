"""LSTM, GRU and RNN, step by step.

Where a sequence is over, the state stays and the output is 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from bngrad.torch.autograd.table import UnsupportedFormError, op

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

State: TypeAlias = tuple[Tensor, ...]
_FUNCTIONS = {"sigmoid": torch.sigmoid, "tanh": torch.tanh, "relu": torch.relu}


def _activations(
    activations: Sequence[str] | None, default: Sequence[str], directions: int
) -> list[list[Callable[[Tensor], Tensor]]]:
    names = list(activations or list(default) * directions)
    if unknown := [name for name in names if name.lower() not in _FUNCTIONS]:
        raise UnsupportedFormError(f"it has the activation {unknown[0]}; expected Sigmoid, Tanh or Relu")
    functions = [_FUNCTIONS[name.lower()] for name in names]
    count = len(default)
    return [functions[count * index : count * (index + 1)] for index in range(directions)]


def _run(
    x: Tensor,
    lengths: Tensor | None,
    states: Sequence[Tensor],
    direction: str,
    layout: int,
    step: Callable[[int, Tensor, State], State],
) -> tuple[Tensor, ...]:
    """Runs the steps in each direction; returns Y and the last states."""
    if layout:
        raise UnsupportedFormError("it has layout = 1; expected 0")
    steps, batch = x.shape[:2]
    valid = torch.full((batch,), steps) if lengths is None else lengths.long()
    ways = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    outputs, lasts = [], []
    for index, backward in enumerate(ways):
        state: State = tuple(initial[index] for initial in states)
        hidden = [torch.zeros_like(state[0])] * steps
        for time in reversed(range(steps)) if backward else range(steps):
            new = step(index, x[time], state)
            going = (time < valid).unsqueeze(1)
            state = tuple(torch.where(going, updated, old) for updated, old in zip(new, state, strict=True))
            hidden[time] = torch.where(going, state[0], torch.zeros_like(state[0]))
        outputs.append(torch.stack(hidden))
        lasts.append(state)
    return torch.stack(outputs, 1), *(torch.stack(by_direction) for by_direction in zip(*lasts, strict=True))


def _first(state: Tensor | None, x: Tensor, w: Tensor, hidden: int) -> Tensor:
    return x.new_zeros(w.shape[0], x.shape[1], hidden) if state is None else state


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
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,  # noqa: ARG001 - that of r
    layout: int = 0,
) -> tuple[Tensor, ...]:
    """H' = f(x W + H R + B)."""
    functions = _activations(activations, ["Tanh"], w.shape[0])
    of_x, of_h = _biases(b, w)

    def step(index: int, x: Tensor, state: State) -> State:
        total = x @ w[index].T + of_x[index] + state[0] @ r[index].T + of_h[index]
        return (functions[index][0](_clipped(total, clip)),)

    return _run(x, lengths, [_first(h0, x, w, r.shape[-1])], direction, layout, step)


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
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,  # noqa: ARG001 - that of r
    input_forget: int = 0,
    layout: int = 0,
) -> tuple[Tensor, ...]:
    """The gates i, o, f and c of x W + H R + B; C' = f C + i c and H' = o h(C')."""
    functions = _activations(activations, ["Sigmoid", "Tanh", "Tanh"], w.shape[0])
    of_x, of_h = _biases(b, w)
    if peepholes is not None or input_forget:
        raise UnsupportedFormError("it has peepholes or input_forget; expected neither")

    def step(index: int, x: Tensor, state: State) -> State:
        f, g, h = functions[index]
        total = x @ w[index].T + of_x[index] + state[0] @ r[index].T + of_h[index]
        i, o, forget, c = _clipped(total, clip).chunk(4, -1)
        new = f(forget) * state[1] + f(i) * g(c)
        return f(o) * h(new), new

    firsts = [_first(state, x, w, r.shape[-1]) for state in (h0, c0)]
    return _run(x, lengths, firsts, direction, layout, step)


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
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,  # noqa: ARG001 - that of r
    layout: int = 0,
    linear_before_reset: int = 0,
) -> tuple[Tensor, ...]:
    """The gates z, r and n of x and H; H' = (1 - z) n + z H."""
    functions = _activations(activations, ["Sigmoid", "Tanh"], w.shape[0])
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

    return _run(x, lengths, [_first(h0, x, w, size)], direction, layout, step)
