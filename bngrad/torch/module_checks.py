"""Finds why a module has no training step: tensors that one graph cannot name, hold or update, and hooks."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from bngrad.errors import InputError, UnsupportedNodeError
from bngrad.torch.custom_gradients import registered_hooks
from bngrad.torch.forward import LOSS, NEW, user_name
from bngrad.torch.watch import memory_ranges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bngrad.errors import BngradError
    from bngrad.torch.forward import Forward


def module_errors(forward: Forward) -> Iterator[BngradError]:
    """The reasons why a module with its loss function has no training step, from its tensors and submodules.

    Each is an `InputError` (a tensor has no values, is complex, or shares memory with another, or names collide)
    or an `UnsupportedNodeError` (a submodule is a ScriptModule, or there is a hook on gradients).
    """
    yield from registered_hooks(forward, of_modules=not forward.custom_gradients)
    for name, module in forward.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            yield UnsupportedNodeError(
                f"module {user_name(name)!r} is a ScriptModule, which torch.export does not trace; expected the "
                "module that it was compiled from"
            )
        if isinstance(module, torch.nn.LSTM) and module.proj_size and not forward.custom_gradients:
            yield UnsupportedNodeError(
                f"module {user_name(name)!r} is an LSTM with proj_size, which ONNX's LSTM does not have; expected "
                "proj_size=0, or a loop over time in the forward pass"
            )
    named = [*forward.named_parameters(), *forward.named_buffers()]
    seen: dict[str, str] = {}
    for full, tensor in named:
        name = user_name(full)
        if is_lazy(tensor):
            yield InputError(f"{name!r} is not initialized; run the module once, as lazy modules need")
        elif tensor.device.type == "meta":
            yield InputError(f"{name!r} is on the meta device, without values; expected a module with values")
        elif tensor.is_complex():
            yield InputError(f"{name!r} is {tensor.dtype}; expected real parameters and buffers")
        if name in seen:
            yield InputError(f"the module and the loss function both have a tensor {name!r}; rename one")
        seen[name] = full
    yield from _name_errors(seen)
    if not any(is_lazy(tensor) for _, tensor in named):
        yield from _memory_errors(forward.tensors())


def _name_errors(names: dict[str, str]) -> Iterator[InputError]:
    if LOSS in names:
        yield InputError(f"the module has a tensor {LOSS!r}, which is the name of the loss; rename it")
    for name in names:
        if f"{name}{NEW}" in names:
            yield InputError(
                f"the module has a tensor {f'{name}{NEW}'!r}, which is the name of the next value of {name!r}; "
                "rename it"
            )


def _memory_errors(tensors: dict[str, torch.Tensor]) -> Iterator[InputError]:
    ranges = sorted(memory_ranges(tensors))
    for (_, end, name), (begin, _, next_name) in pairwise(ranges):
        if begin < end and tensors[name].device == tensors[next_name].device:
            yield InputError(
                f"{name!r} and {next_name!r} share memory, so that an update of one changes the other; expected "
                "tensors of their own (clone one), or one tensor under both names"
            )


def require_module(module: object) -> None:
    """Checks that an object is a module with parameters and modes of its own.

    Raises:
        InputError: It is not.
    """
    if isinstance(module, torch.export.ExportedProgram) or (
        isinstance(module, torch.fx.GraphModule) and "train" in vars(module)
    ):
        raise InputError(
            "module is an exported program, which has no training mode; expected the torch.nn.Module that it was "
            "exported from, or its file by torch.onnx.export(program, dynamo=True, optimize=False) for "
            "bngrad.training_step"
        )
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"module is a {type(module).__name__}; expected a torch.nn.Module")


def require_no_hidden_statistics(loss_fn: object) -> None:
    """Checks that a loss function does not change buffers of a module that is not its submodule.

    Raises:
        InputError: It does.
    """
    cells = getattr(loss_fn, "__closure__", None) or ()
    for hidden in (cell.cell_contents for cell in cells):
        if isinstance(hidden, torch.nn.Module) and any(
            norm.training and norm.track_running_stats for norm in hidden.modules() if isinstance(norm, _BatchNorm)
        ):
            raise InputError(
                f"loss_fn uses a {type(hidden).__name__} with a batch norm in training mode; expected a loss "
                "function that is an nn.Module and has it as a submodule, so that it is trained, too"
            )
