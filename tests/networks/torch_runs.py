"""A training step of a torch module as arrays: loss, gradients and new buffers, in float32 or float64."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bngrad.validation.noise import one_ulp_away

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Array = NDArray[Any]

RUNS = 3
"""Runs of each program: with the example itself, then with weights and data one ulp away."""


def inputs_of(example: tuple) -> tuple[torch.Tensor, ...]:
    """The positional arguments of the module and then the targets, in one row."""
    inputs, *targets = example
    return (*(inputs if isinstance(inputs, tuple) else (inputs,)), *targets)


def runs(module: torch.nn.Module, example: tuple) -> Iterator[tuple[dict[str, Array], list[Array]]]:
    """Yields the state and the inputs of each run."""
    state = {name: value.numpy(force=True).copy() for name, value in module.state_dict(keep_vars=True).items()}
    data = [value.numpy() for value in inputs_of(example)]
    yield state, data
    generator = np.random.default_rng(0)
    for _ in range(RUNS - 1):
        yield (
            {name: one_ulp_away(value, generator) for name, value in state.items()},
            [one_ulp_away(value, generator) for value in data],
        )


def torch_step(
    module: torch.nn.Module,
    loss_fn: Callable,
    example: tuple,
    state: dict[str, Array],
    data: list[Array],
    dtype: torch.dtype,
) -> dict[str, Array]:
    """Runs one forward and backward pass; ``NAME_grad`` and ``NAME_new`` beside ``loss``."""
    module = copy.deepcopy(module)
    module.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in state.items()})
    module.to(dtype)
    given = [torch.from_numpy(value.copy()) for value in data]
    given = [value.to(dtype) if value.is_floating_point() else value for value in given]
    count = len(given) - (len(example) - 1)
    loss = loss_fn(module(*given[:count]), *given[count:])
    loss.backward()
    results = {"loss": loss.detach().numpy()}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            results[f"{name}_grad"] = gradient.numpy()
    results |= {f"{name}_new": value.numpy() for name, value in module.named_buffers()}
    return results


def kind_of(name: str) -> str:
    """The kind of an output of `torch_step`."""
    return "loss" if name == "loss" else "gradient" if name.endswith("_grad") else "buffer"
