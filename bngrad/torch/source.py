"""Reads what users give, exports it, and compares it with PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from bngrad.errors import InputError, ModelError
from bngrad.graph.name_messages import listed
from bngrad.torch.compare import compare_steps
from bngrad.torch.eager import run_eager
from bngrad.torch.example import read_example
from bngrad.torch.export import Exported, export_training
from bngrad.torch.forward import LOSS, NEW, Forward
from bngrad.torch.module_checks import require_exportable, require_no_hidden_statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from bngrad.torch.example import Example

    Loss = Callable[..., torch.Tensor]

_WRONG = 1e3
"""How many times PyTorch's own error a result may be off before it is refused; rounding stays far below."""


class Source(NamedTuple):
    """What is exported, and what became of it."""

    forward: Forward
    example: Example
    trained: list[str]
    """The parameters to train that the loss depends on."""
    exported: Exported


def read_source(
    module: torch.nn.Module,
    loss_fn: Loss | None,
    example: Any,  # noqa: ANN401
    wanted: Collection[str] | None,
    dynamic_batch: bool,
    input_names: Sequence[str] | None,
) -> Source:
    """Reads the arguments, and exports the module."""
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"module is a {type(module).__name__}; expected a torch.nn.Module")
    forward = Forward(module, loss_function(loss_fn))
    require_exportable(forward)
    reserved = {LOSS, *forward.tensors(), *(f"{name}{NEW}" for name in forward.tensors())}
    read = read_example(module, loss_fn, example, input_names, reserved)
    forward.taken.update(read.names)
    trained = [
        name for name, one in forward.tensors().items() if one.requires_grad and (wanted is None or name in wanted)
    ]
    if not trained:
        raise InputError("no parameter of the module requires a gradient; expected one to train")
    eager = run_eager(forward, read, trained)
    for whose in eager.changes.random:
        raise ModelError(
            f"the forward pass draws random numbers of {whose}, which would be constants; expected "
            "those of PyTorch"
        )
    trained = [name for name in trained if name in eager.gradients]
    if not trained:
        raise InputError("the loss does not depend on a parameter that requires a gradient; expected one to train")
    exported = export_training(forward, read, trained, dynamic_batch=dynamic_batch)
    if eager.changes.attributes:
        exported.warnings.append(
            f"the forward pass changes {listed(eager.changes.attributes)}, which the graph has as constants; if "
            "they take part in the computation, register a buffer"
        )
    return Source(forward, read, trained, exported)


def loss_function(loss_fn: Loss | None) -> Loss | None:
    """Returns a loss function.

    Raises:
        InputError: It is no function, or changes buffers of a module that it does not have.
    """
    if loss_fn is not None and not callable(loss_fn):
        raise InputError(f"loss_fn is a {type(loss_fn).__name__}; expected a function, a module, or None")
    require_no_hidden_statistics(loss_fn)
    return loss_fn


def check_source(source: Source) -> None:
    """Refuses what PyTorch's exporter wrote wrongly."""
    model = source.exported.model
    check = compare_steps(source.forward, source.example, model, source.trained, steps=1, limit=_WRONG)
    if check.failures:
        worst = check.failures[0]
        raise ModelError(
            f"what PyTorch's exporter wrote is wrong: {worst.tensor} is {worst.relative_l2:.1e} off "
            f"({len(check.failures)} of {len(check.rows)} values are); the module has an op that it does not "
            "export correctly, or one that is not a function of its inputs (check=False skips the comparison)"
        )
