"""Refuses modules that have no training step: with tensors that one graph cannot name, hold or update."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from bngrad.errors import InputError, UnsupportedNodeError
from bngrad.torch.custom_gradients import refuse_registered_hooks
from bngrad.torch.forward import LOSS, NEW, user_name

if TYPE_CHECKING:
    from bngrad.torch.forward import Forward


def require_exportable(forward: Forward) -> None:
    """Checks the tensors and submodules of a module and its loss function.

    Raises:
        InputError: A tensor has no values, is complex, or shares memory with another, or names collide.
        UnsupportedNodeError: A submodule is a ScriptModule, or has a hook on gradients.
    """
    refuse_registered_hooks(forward, of_modules=not forward.custom_gradients)
    for name, one in forward.named_modules():
        if isinstance(one, torch.jit.ScriptModule):
            raise UnsupportedNodeError(
                f"module {user_name(name)!r} is a ScriptModule, which torch.export does not trace; expected the "
                "module that it was made of"
            )
    named = [*forward.named_parameters(), *forward.named_buffers()]
    seen: dict[str, str] = {}
    for full, one in named:
        name = user_name(full)
        if is_lazy(one):
            raise InputError(f"{name!r} is not initialized; run the module once, as lazy modules need")
        if one.device.type == "meta":
            raise InputError(f"{name!r} is on the meta device, without values; expected a module with values")
        if one.is_complex():
            raise InputError(f"{name!r} is {one.dtype}; expected real parameters and buffers")
        if name in seen:
            raise InputError(f"the module and the loss function both have a tensor {name!r}; rename one")
        seen[name] = full
    _require_names(seen)
    _require_own_memory(forward.tensors())


def _require_names(names: dict[str, str]) -> None:
    if LOSS in names:
        raise InputError(f"the module has a tensor {LOSS!r}, which is the name of the loss; rename it")
    for name in names:
        if f"{name}{NEW}" in names:
            raise InputError(
                f"the module has a tensor {f'{name}{NEW}'!r}, which is the name of the next value of {name!r}; "
                "rename it"
            )


def _require_own_memory(tensors: dict[str, torch.Tensor]) -> None:
    ranges = []
    for name, one in tensors.items():
        if one.layout == torch.strided and one.numel():
            last = sum((size - 1) * stride for size, stride in zip(one.shape, one.stride(), strict=True))
            begin = one.data_ptr()
            ranges.append((str(one.device), begin, begin + (last + 1) * one.element_size(), name))
    ranges.sort()
    for (device, _, end, name), (next_device, begin, _, next_name) in pairwise(ranges):
        if device == next_device and begin < end:
            raise InputError(
                f"{name!r} and {next_name!r} share memory, so that an update of one changes the other; expected "
                "tensors of their own (clone one), or one tensor under both names"
            )


def require_no_hidden_statistics(loss_fn: object) -> None:
    """Checks that a loss function does not use a module whose buffers it changes, but which it does not have.

    Raises:
        InputError: It does.
    """
    cells = getattr(loss_fn, "__closure__", None) or ()
    for hidden in (cell.cell_contents for cell in cells):
        if isinstance(hidden, torch.nn.Module) and any(
            isinstance(one, _BatchNorm) and one.training and one.track_running_stats for one in hidden.modules()
        ):
            raise InputError(
                f"loss_fn uses a {type(hidden).__name__} with a batch norm in training mode; expected a loss "
                "function that is an nn.Module and has it as a submodule, so that it is trained, too"
            )
