"""Reads what users give, exports it, and compares it with PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from bngrad.errors import BngradError, InputError, ModelError, UnsupportedNodeError
from bngrad.graph.name_messages import listed
from bngrad.opset.gradient_names import gradient_name
from bngrad.torch.compare import compare_steps
from bngrad.torch.custom_gradients import function_error
from bngrad.torch.dynamic_shapes import read_dynamic
from bngrad.torch.eager import Eager, run_eager
from bngrad.torch.example import read_example
from bngrad.torch.export import Exported, export_training
from bngrad.torch.forward import LOSS, NEW, Forward
from bngrad.torch.module_checks import module_errors, require_module, require_no_hidden_statistics
from bngrad.torch.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from bngrad.torch.example import Example
    from bngrad.torch.options import ExportOptions
    from bngrad.validation.report import Check

    Loss = Callable[..., torch.Tensor]

WRONG = 1e3
"""How many times PyTorch's own error a result may be off before it is refused; rounding stays far below."""


class Read(NamedTuple):
    """What users give, read and checked."""

    forward: Forward
    example: Example
    trained: list[str]
    """The parameters to train that the loss depends on."""
    warnings: list[str]
    """What is probably not intended."""
    in_python: list[str]
    """Where the forward pass leaves PyTorch's ops: with values of tensors, or their data."""


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
    options: ExportOptions,
    *,
    wanted: Collection[str] | None = None,
    sync: bool = False,
    blockers: list[BngradError] | None = None,
) -> Source:
    """Reads the arguments, and exports the module.

    With a list of blockers, the errors that are not raised go there, so that others are found, too.
    """
    read = read_arguments(module, loss_fn, example, wanted, options.input_names, blockers=blockers)
    dynamic = read_dynamic(read.example, options.dynamic_shapes, dynamic_batch=options.dynamic_batch)
    try:
        exported = export_training(read.forward, read.example, read.trained, dynamic, sync=sync, missing=blockers)
    except ModelError as error:
        if isinstance(error, UnsupportedNodeError) or not read.in_python:
            raise
        raise ModelError(
            f"{error}; the forward pass has {listed(read.in_python)}: use ops of PyTorch instead, such as "
            "torch.where for a branch and detach() for data"
        ) from error
    exported.warnings.extend(read.warnings)
    return Source(read.forward, read.example, read.trained, exported)


def read_arguments(
    module: torch.nn.Module,
    loss_fn: Loss | None,
    example: Any,  # noqa: ANN401
    wanted: Collection[str] | None,
    input_names: Sequence[str] | None,
    *,
    custom_gradients: bool = False,
    blockers: list[BngradError] | None = None,
) -> Read:
    """Reads the arguments, and runs the module once in PyTorch.

    Args:
        module: The module.
        loss_fn: The loss function.
        example: The tensors of one batch.
        wanted: The parameters to train; by default those that require a gradient.
        input_names: Names for the tensors of the example.
        custom_gradients: Whether the module may define gradients of its own.
        blockers: Where the errors go after which reading can go on; None to raise the first.
    """

    def refuse(errors: Iterable[BngradError]) -> None:
        for error in errors:
            if blockers is None:
                raise error
            blockers.append(error)

    require_module(module)
    forward = Forward(module, loss_function(loss_fn), custom_gradients=custom_gradients)
    refuse(module_errors(forward))
    names = forward.tensors()
    reserved = {LOSS, *names, *(f"{name}{NEW}" for name in names)}
    gradients = {gradient_name(name) for name in names} if custom_gradients else set()
    read = read_example(module, loss_fn, example, input_names, reserved | gradients)
    forward.taken.update(read.names, gradients)
    trained = [
        name for name, one in forward.tensors().items() if one.requires_grad and (wanted is None or name in wanted)
    ]
    if not trained:
        raise InputError("no parameter of the module requires a gradient; expected one to train")
    watch = Watch(forward.tensors(), trained, custom_gradients=custom_gradients)
    try:
        eager = run_eager(forward, read, trained, watch=watch)
    except BngradError:
        refuse(watch.errors.values())  # which may be why
        raise
    refuse(pass_errors(watch, eager, custom_gradients=custom_gradients))
    refuse(other_losses(eager.loss, run_eager(forward, read, trained, watch=watch).loss))
    trained = [name for name in trained if name in eager.gradients]
    if not trained:
        raise InputError("the loss does not depend on a parameter that requires a gradient; expected one to train")
    warnings = []
    if eager.recomputed:
        warnings.append(
            f"a checkpoint computes again what changes {listed(eager.recomputed)}, so that PyTorch updates it "
            "twice in a step; a training step updates it once"
        )
    if eager.changes.attributes:
        warnings.append(
            f"the forward pass changes {listed(eager.changes.attributes)}, which the graph has as constants; if "
            "they take part in the computation, register a buffer"
        )
    if watch.foreign:
        warnings.append(
            "the loss depends on tensors that require a gradient, and that neither the module nor loss_fn has as "
            f"parameters: {listed(watch.foreign, most=3)}; they are constants: register them to train them"
        )
    return Read(forward, read, trained, warnings, list(watch.in_python))


def pass_errors(watch: Watch, eager: Eager, *, custom_gradients: bool) -> Iterator[BngradError]:
    """Why a pass that ran in PyTorch cannot be exported."""
    yield from watch.errors.values()
    yield from watch.changed_aliases(eager.new)
    if not custom_gradients:
        yield from map(function_error, eager.functions)
    for whose in eager.changes.random:
        yield ModelError(
            f"the forward pass draws random numbers of {whose}, which would be constants; expected those of "
            "PyTorch"
        )


def other_losses(loss: torch.Tensor, again: torch.Tensor) -> Iterator[ModelError]:
    """That two passes with the same inputs, state and random numbers have different losses."""
    if not torch.allclose(loss, again, rtol=1e-3, atol=1e-6, equal_nan=True):
        yield ModelError(
            f"two calls of the module with the same inputs have the losses {float(loss):g} and {float(again):g}: "
            "the forward pass depends on what it changes outside the module; expected a function of its inputs, "
            "parameters and buffers: register a buffer"
        )


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
    """Refuses a model of which a step is not PyTorch's."""
    model = source.exported.model
    require_equal(compare_steps(source.forward, source.example, model, source.trained, steps=1, limit=WRONG))


def require_equal(check: Check) -> None:
    """Refuses a model of one step that does not compute what PyTorch does.

    Raises:
        ModelError: A value differs by more than the limit of the check.
    """
    if not check.failures:
        return
    worst = check.failures[0]
    if any(row.kind != "gradient" for row in check.failures):
        why = (
            "PyTorch's exporter writes an op of the module otherwise, or the module is not a function of its "
            "inputs, parameters and buffers"
        )
    else:
        why = (
            "the loss is PyTorch's, so the module has a gradient that does not follow from its forward pass, or "
            "values at a kink: try another example"
        )
    raise ModelError(
        f"a step of the exported model is not PyTorch's: {worst.tensor} is {worst.relative_l2:.1e} off "
        f"({len(check.failures)} of {len(check.rows)} values are); {why} (check=False skips the comparison)"
    )
