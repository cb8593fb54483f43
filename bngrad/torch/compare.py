"""Compares training on ONNX Runtime with PyTorch, in units of PyTorch's own rounding errors.

The loss, each gradient and each new buffer of a few steps are computed three times from the same state: by the
training graph, and by the module in its own type and in float64. `bngrad.validation.float32_error` decides.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bngrad.errors import BngradError, ModelError
from bngrad.graph.nodes import describe
from bngrad.io.files import to_proto
from bngrad.opset.gradient_names import differentiated_name, gradient_name
from bngrad.runtime.session import session
from bngrad.torch.capture import first_line
from bngrad.torch.eager import run_eager
from bngrad.torch.forward import LOSS, NEW, Forward
from bngrad.torch.randomness import NothingRandom, nothing_random
from bngrad.training.differentiate import differentiate
from bngrad.training.to_inference import random_nodes
from bngrad.validation.float32_error import LIMIT, Results, float32_error
from bngrad.validation.report import Check

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    import onnx_ir as ir
    from numpy.typing import NDArray
    from onnxruntime import InferenceSession

    from bngrad.torch.eager import Eager
    from bngrad.torch.example import Example

    Arrays = Mapping[str, NDArray[Any]]
    State = dict[str, torch.Tensor]

_STEP = 1e-3
"""The size of an update between the compared steps, relative to each weight."""
_VARIED = 1e-3
"""The size of a variation of each weight, relative to it."""


def compare_steps(
    forward: Forward,
    example: Example,
    model: ir.Model,
    trained: Collection[str],
    *,
    steps: int,
    limit: float = LIMIT,
) -> Check:
    """Compares the training graph of an exported model with its module.

    Args:
        forward: The module and its loss.
        example: The arguments.
        model: The exported forward model.
        trained: The parameters that are trained, by the user's names.
        steps: The number of steps; between them the weights move along PyTorch's gradients.
        limit: The largest measure that passes.
    """
    check = Check("PyTorch", unit="x PyTorch's own error", limit=limit, required=True)
    quiet = nothing_random(model) if random_nodes(model) else model
    if left := random_nodes(quiet):
        check.skipped = f"{describe(left[0])} draws other numbers than PyTorch"
        return check
    graph = differentiate(quiet, defaults=False)
    outputs = {graph.loss: LOSS}
    outputs |= {output: gradient_name(name) for name, output in graph.gradients.items()}
    outputs |= {output: f"{name}{NEW}" for name, output in graph.running_statistics.items()}
    run_graph = graph_runner(graph.model, outputs)
    with nullcontext() if quiet is model else NothingRandom():
        compare_graph(check, forward, example, run_graph, trained, steps=steps)
    return check


def graph_runner(model: ir.Model, outputs: Mapping[str, str]) -> Callable[[Arrays], Arrays]:
    """Returns a function that runs a training graph.

    Args:
        model: The training graph, without defaults of its inputs.
        outputs: The name under which the function returns each output.
    """
    run = _session(model)
    inputs = [argument.name for argument in run.get_inputs()]

    def run_graph(feeds: Arrays) -> Arrays:
        values = run.run(list(outputs), {name: feeds[name] for name in inputs})
        return dict(zip(outputs.values(), values, strict=True))

    return run_graph


def compare_graph(
    check: Check,
    forward: Forward,
    example: Example,
    run_graph: Callable[[Arrays], Arrays],
    trained: Collection[str],
    *,
    steps: int,
) -> None:
    """Compares a training graph with a module, and adds the rows to a check.

    Args:
        check: The check.
        forward: The module and its loss.
        example: The arguments.
        run_graph: Runs the training graph. It takes the inputs of the example, the parameters and the buffers by
            name, and returns ``loss``, ``NAME_grad`` and ``NAME_new``.
        trained: The parameters that are trained, by the user's names.
        steps: The number of steps.
    """
    # In float64, PyTorch's own error is that of float32: a gradient that is 0 but for rounding has a size then.
    double = any(tensor.dtype == torch.float64 for tensor in forward.tensors().values())

    def run(state: State) -> Results:
        own = run_eager(forward, example, trained, state=state, dtype=torch.float32 if double else None)
        exact = run_eager(forward, example, trained, state=state, dtype=torch.float64)
        got = run_graph(example.feeds() | {name: tensor.cpu().numpy() for name, tensor in state.items()})
        return Results(got, _arrays(own), _expected(_arrays(exact), got, state))

    def varied(state: State, seed: int) -> State:
        generator = torch.Generator().manual_seed(seed)
        return {
            name: tensor * (1 + _VARIED * torch.randn(tensor.shape, generator=generator).to(tensor))
            if name in trained
            else tensor
            for name, tensor in state.items()
        }

    float32_error(
        check,
        run,
        {name: tensor.detach().clone() for name, tensor in forward.tensors().items()},
        steps=steps,
        following=_following,
        varied=varied,
        kind_of=_kind_of,
        implementation="native",
        against="PyTorch",
    )


def _session(model: ir.Model) -> InferenceSession:
    try:
        return session(to_proto(model))
    except BngradError:
        raise
    except Exception as error:  # of ONNX Runtime, which has no base class for them
        raise ModelError(
            "ONNX Runtime refuses the training graph, perhaps for a type that it has no kernel for: "
            f"{first_line(error)}"
        ) from error


def _arrays(eager: Eager) -> dict[str, NDArray[Any]]:
    tensors = {LOSS: eager.loss}
    tensors |= {gradient_name(name): gradient for name, gradient in eager.gradients.items()}
    tensors |= {f"{name}{NEW}": value for name, value in eager.new.items()}
    return {name: tensor.cpu().numpy() for name, tensor in tensors.items()}


def _expected(exact: Arrays, got: Arrays, state: State) -> dict[str, NDArray[Any]]:
    """The values that a training graph must have: the loss, nonzero gradients, and floats that change."""

    def is_needed(name: str, value: NDArray[Any]) -> bool:
        if name in got or name == LOSS:
            return True
        if differentiated_name(name) is not None:
            return bool(value.any())
        old = state[name.removesuffix(NEW)]
        return old.is_floating_point() and not np.array_equal(value, old.double().cpu().numpy(), equal_nan=True)

    return {name: value for name, value in exact.items() if is_needed(name, value)}


def _kind_of(name: str) -> str:
    return "loss" if name == LOSS else "gradient" if differentiated_name(name) is not None else "buffer"


def _following(state: State, results: Results) -> State:
    """The state after a step of PyTorch's, whose update has a fixed size relative to each weight."""
    own = results.float32
    following = {}
    for name, tensor in state.items():
        following[name] = tensor
        if (new := own.get(f"{name}{NEW}")) is not None:
            following[name] = torch.as_tensor(new, device=tensor.device, dtype=tensor.dtype)
        elif (gradient := own.get(gradient_name(name))) is not None:
            size = float(np.linalg.norm(gradient.astype(np.float64)))
            if np.isfinite(size) and size > 0:
                update = torch.as_tensor(gradient, device=tensor.device, dtype=tensor.dtype)
                following[name] = tensor - update * (_STEP * float(tensor.norm()) / size)
    return following
