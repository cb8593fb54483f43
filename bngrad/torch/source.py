"""Reads the user's arguments, exports the module, and compares it with PyTorch."""

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
from bngrad.torch.watch import Watch, place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from bngrad.torch.example import Example
    from bngrad.torch.options import ExportOptions
    from bngrad.validation.report import Check

    Loss = Callable[..., torch.Tensor]

MAX_ERROR_RATIO = 1e3
"""The largest error of a result in units of PyTorch's own; that of rounding stays far below."""


class Arguments(NamedTuple):
    """The user's arguments, validated."""

    forward: Forward
    example: Example
    trained: list[str]
    """The parameters to train that the loss depends on."""
    warnings: list[str]
    """The warnings about the pass in PyTorch."""
    in_python: list[str]
    """The places at which the forward pass leaves PyTorch's ops: for values of tensors, or their data."""


class ExportResult(NamedTuple):
    """A module and its exported model."""

    arguments: Arguments
    exported: Exported


def read_source(
    module: torch.nn.Module,
    loss_fn: Loss | None,
    example: Any,  # noqa: ANN401
    options: ExportOptions,
    *,
    weights: Collection[str] | None = None,
    sync: bool = False,
    blockers: list[BngradError] | None = None,
) -> ExportResult:
    """Reads the arguments, and exports the module.

    With a list of blockers, errors after which the export can continue are added to it instead of raised.
    """
    arguments = read_arguments(module, loss_fn, example, weights, options.input_names, blockers=blockers)
    dynamic = read_dynamic(arguments.example, options.dynamic_shapes, dynamic_batch=options.dynamic_batch)
    try:
        exported = export_training(
            arguments.forward, arguments.example, arguments.trained, dynamic, sync=sync, missing=blockers
        )
    except ModelError as error:
        if isinstance(error, UnsupportedNodeError):
            raise
        if not arguments.in_python:
            place = None if error.__cause__ is None else place_of(error.__cause__)
            if place is None:
                raise
            raise ModelError(f"{error}; it stops at {place}") from error
        raise ModelError(
            f"{error}; the forward pass uses {listed(arguments.in_python)}: use ops of PyTorch instead, such as "
            "torch.where for a branch and detach() for data"
        ) from error
    exported.warnings.extend(arguments.warnings)
    return ExportResult(arguments, exported)


def read_arguments(
    module: torch.nn.Module,
    loss_fn: Loss | None,
    example: Any,  # noqa: ANN401
    weights: Collection[str] | None,
    input_names: Sequence[str] | None,
    *,
    custom_gradients: bool = False,
    blockers: list[BngradError] | None = None,
) -> Arguments:
    """Reads the arguments, and runs the module once in PyTorch.

    Args:
        module: The module.
        loss_fn: The loss function.
        example: The tensors of one batch.
        weights: The parameters to train; by default those that require a gradient.
        input_names: Names for the tensors of the example.
        custom_gradients: Whether the module may define gradients of its own.
        blockers: Receives the errors after which reading can continue; None to raise the first.
    """

    def refuse(errors: Iterable[BngradError]) -> None:
        for error in errors:
            if blockers is None:
                raise error
            blockers.append(error)

    require_module(module)
    forward = Forward(module, loss_function(loss_fn), custom_gradients=custom_gradients)
    refuse(module_errors(forward))
    tensors = forward.tensors()
    reserved = {LOSS, *tensors, *(f"{name}{NEW}" for name in tensors)}
    gradients = {gradient_name(name) for name in tensors} if custom_gradients else set()
    parsed = read_example(module, loss_fn, example, input_names, reserved | gradients)
    forward.taken.update(parsed.names, gradients)
    trained = [
        name for name, tensor in tensors.items() if tensor.requires_grad and (weights is None or name in weights)
    ]
    if not trained:
        raise InputError("no parameter of the module requires a gradient; expected one to train")
    watch = Watch(tensors, trained, custom_gradients=custom_gradients)
    try:
        eager = run_eager(forward, parsed, trained, watch=watch)
    except BngradError:
        refuse(watch.errors.values())  # they may be the cause
        raise
    refuse(pass_errors(watch, eager, custom_gradients=custom_gradients))
    refuse(other_losses(eager.loss, run_eager(forward, parsed, trained, watch=watch).loss))
    trained = [name for name in trained if name in eager.gradients]
    if not trained:
        raise InputError("the loss does not depend on a parameter that requires a gradient; expected one to train")
    warnings = []
    if eager.recomputed:
        warnings.append(
            f"a checkpoint recomputes an update of {listed(eager.recomputed)}, so PyTorch updates it twice in a "
            "step; a training step updates it once"
        )
    if eager.changes.attributes:
        warnings.append(
            f"the forward pass changes {listed(eager.changes.attributes)}, which are constants in the graph; if "
            "they take part in the computation, register a buffer"
        )
    if watch.foreign:
        warnings.append(
            "the loss depends on tensors that require a gradient, and that neither the module nor loss_fn has as "
            f"parameters: {listed(watch.foreign, most=3)}; they are constants: register them to train them"
        )
    return Arguments(forward, parsed, trained, warnings, list(watch.in_python))


def pass_errors(watch: Watch, eager: Eager, *, custom_gradients: bool) -> Iterator[BngradError]:
    """The reasons why a pass that ran in PyTorch cannot be exported."""
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
    """The error if two passes with the same inputs, state and random numbers have different losses."""
    if not torch.allclose(loss, again, rtol=1e-3, atol=1e-6, equal_nan=True):
        yield ModelError(
            f"two calls of the module with the same inputs have the losses {float(loss):g} and {float(again):g}: "
            "the forward pass depends on what it changes outside the module; expected a function of its inputs, "
            "parameters and buffers: register a buffer"
        )


def loss_function(loss_fn: Loss | None) -> Loss | None:
    """Returns a loss function.

    Raises:
        InputError: It is not a function, or changes buffers of a module that is not its submodule.
    """
    if loss_fn is not None and not callable(loss_fn):
        raise InputError(f"loss_fn is a {type(loss_fn).__name__}; expected a function, a module, or None")
    require_no_hidden_statistics(loss_fn)
    return loss_fn


def check_source(source: ExportResult) -> None:
    """Compares a step of the exported model with PyTorch, and refuses the model if it differs."""
    (forward, example, trained, *_), exported = source
    require_equal(compare_steps(forward, example, exported.model, trained, steps=1, limit=MAX_ERROR_RATIO))


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
            "PyTorch's exporter writes an op of the module differently, or the module is not a function of its "
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
