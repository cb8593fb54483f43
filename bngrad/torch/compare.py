"""Compares training on ONNX Runtime with PyTorch, in units of PyTorch's own rounding errors.

The loss, each gradient and each new buffer of a few steps are computed three times from the same state: by the
training graph, and by the module in its own type and in float64. The distance of the training graph from float64,
divided by the module's own, is what decides::

    measure = max over steps ||ours - float64|| / max over steps max(||torch - float64||, u ||float64||)

with the unit roundoff u of float32. ReLU and max pooling amplify the last bit of deep networks, for both alike.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from bngrad.graph.nodes import describe
from bngrad.io.files import to_proto
from bngrad.runtime.session import session
from bngrad.torch.eager import run_eager
from bngrad.torch.forward import LOSS, Forward
from bngrad.torch.randomness import NothingRandom, nothing_random
from bngrad.training.differentiate import differentiate
from bngrad.training.to_inference import random_nodes
from bngrad.validation.report import Check, Row, distance, norm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir
    from numpy.typing import NDArray

    from bngrad.torch.eager import Eager
    from bngrad.torch.example import Example

    Array = NDArray[Any]

LIMIT = 10.0
"""The largest distance from float64 that passes, in units of PyTorch's own."""

_ROUNDOFF = 2.0**-24
_STEP = 1e-3
"""The size of an update between the compared steps, relative to each weight."""


class Tested(NamedTuple):
    """A training graph in a session."""

    run: Any
    loss: str
    gradients: Mapping[str, str]
    buffers: Mapping[str, str]


def compare_steps(
    forward: Forward, example: Example, model: ir.Model, *, steps: int, limit: float = LIMIT
) -> Check:
    """Compares the training graph of an exported model with its module.

    Args:
        forward: The module and its loss.
        example: The arguments.
        model: The exported forward model.
        steps: The number of steps; between them the weights move, as PyTorch's gradients say.
        limit: The largest measure that passes.
    """
    check = Check("PyTorch", unit="x PyTorch's own error", limit=limit, required=True)
    quiet = nothing_random(model) if random_nodes(model) else model
    if left := random_nodes(quiet):
        check.skipped = f"{describe(left[0])} draws other numbers than PyTorch"
        return check
    made = differentiate(quiet, defaults=False)
    tested = Tested(session(to_proto(made.model)), made.loss, made.gradients, made.running_statistics)
    state = {name: one.detach().clone() for name, one in forward.tensors().items()}
    found: dict[str, list[tuple[Array, Array, Array]]] = {}
    with nullcontext() if quiet is model else NothingRandom():
        for _ in range(steps):
            own = run_eager(forward, example, list(made.gradients), state=state)
            exact = run_eager(forward, example, list(made.gradients), state=state, dtype=torch.float64)
            ours = _run(tested, example, state)
            for name, triple in _triples(tested, ours, own, exact).items():
                found.setdefault(name, []).append(triple)
            state = _next(state, own)
    check.rows = [_row(name, triples, limit) for name, triples in found.items()]
    return check


def _run(tested: Tested, example: Example, state: Mapping[str, torch.Tensor]) -> dict[str, Array]:
    given = example.feeds() | {name: one.cpu().numpy() for name, one in state.items()}
    feeds = {one.name: given[one.name] for one in tested.run.get_inputs()}
    names = [one.name for one in tested.run.get_outputs()]
    return dict(zip(names, tested.run.run(None, feeds), strict=True))


def _triples(
    tested: Tested, ours: Mapping[str, Array], own: Eager, exact: Eager
) -> dict[str, tuple[Array, Array, Array]]:
    """What was computed by us, by PyTorch and in float64, by output."""
    result = {tested.loss: (ours[tested.loss], own.loss.numpy(), exact.loss.numpy())}
    for name, output in tested.gradients.items():
        result[output] = ours[output], own.gradients[name].cpu().numpy(), exact.gradients[name].cpu().numpy()
    for name, output in tested.buffers.items():
        result[output] = ours[output], own.new[name].cpu().numpy(), exact.new[name].cpu().numpy()
    return result


def _row(name: str, triples: Sequence[tuple[Array, Array, Array]], limit: float) -> Row:
    apart = max(distance(ours, exact) for ours, _, exact in triples)
    size = max(norm(exact) for _, _, exact in triples)
    unit = max(max(distance(own, exact), _ROUNDOFF * norm(exact)) for _, own, exact in triples)
    measure = 0.0 if apart == 0 else apart / unit if unit else math.inf
    largest = max(float(np.max(np.abs(ours.astype(np.float64) - exact), initial=0)) for ours, _, exact in triples)
    kind = "loss" if name == LOSS else "gradient" if name.endswith("_grad") else "buffer"
    relative = 0.0 if apart == 0 else apart / size if size else math.inf
    passed = measure <= limit
    note = f"PyTorch's own {unit / size:.1e}" if size else ""
    return Row(name, name, kind, "native", "float64", largest, relative, measure, passed, note)


def _next(state: Mapping[str, torch.Tensor], own: Eager) -> dict[str, torch.Tensor]:
    """The state after a step of PyTorch's, whose update has a fixed size relative to each weight."""
    result = {name: own.new.get(name, one) for name, one in state.items()}
    for name, gradient in own.gradients.items():
        size = float(gradient.norm())
        if math.isfinite(size) and size > 0:
            result[name] = state[name] - gradient * (_STEP * float(state[name].norm()) / size)
    return result
