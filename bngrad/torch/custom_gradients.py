"""Finds gradients that PyTorch does not derive from the forward pass: an exported graph does not have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.utils.checkpoint
from torch.nn.modules.module import _global_backward_hooks, _global_backward_pre_hooks

from bngrad.errors import UnsupportedNodeError
from bngrad.torch.forward import user_name
from bngrad.torch.watch import ADVICE

if TYPE_CHECKING:
    from collections.abc import Iterator

_PYTORCHS_OWN = (
    "torch._prims",
    "torch._library.autograd.GeneratedBackwardFor_prims_",
    "torch.utils.checkpoint.",
)
"""The functions that wrap primitive ops and checkpoints; ops of a user's library have other names."""


def functions(loss: torch.Tensor) -> list[str]:
    """Names each `torch.autograd.Function` that a loss depends on, however the module called it.

    PyTorch wraps its own primitive ops, and those of libraries, in such functions, too.

    Raises:
        UnsupportedNodeError: A function is a reentrant checkpoint, which runs a backward pass of its own.
    """
    names: dict[str, None] = {}
    seen, waiting = set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [other for other, _ in node.next_functions]
        if not isinstance(node, torch.autograd.function.BackwardCFunction):
            continue
        function = getattr(node, "_forward_cls", type(node))
        name = f"{function.__module__}.{function.__qualname__}"
        if function is torch.utils.checkpoint.CheckpointFunction:
            raise UnsupportedNodeError(
                "the module uses torch.utils.checkpoint with use_reentrant=True, which runs a backward pass of "
                "its own; pass use_reentrant=False"
            )
        if not name.startswith(_PYTORCHS_OWN):
            names.setdefault(name)
    return list(names)


def function_error(name: str) -> UnsupportedNodeError:
    """The error for a function that `functions` names."""
    return UnsupportedNodeError(
        f"the module calls {name}, a torch.autograd.Function, which has a backward of its own; {ADVICE}: "
        "write it with ops of PyTorch"
    )


def registered_hooks(module: torch.nn.Module, *, of_modules: bool = True) -> Iterator[UnsupportedNodeError]:
    """The hooks on gradients of a module, as errors that name the module or the parameter.

    Args:
        module: The module.
        of_modules: Whether hooks of modules are among them, and not only those of parameters.
    """
    if of_modules and (_global_backward_hooks or _global_backward_pre_hooks):
        yield UnsupportedNodeError(f"all modules have a global backward hook; {ADVICE}: remove the hook")
    for name, submodule in module.named_modules() if of_modules else ():
        if submodule._backward_hooks or submodule._backward_pre_hooks:
            yield UnsupportedNodeError(
                f"module {user_name(name)!r} has a backward hook; {ADVICE}: remove the hook"
            )
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            yield UnsupportedNodeError(
                f"parameter {user_name(name)!r} has a gradient hook; {ADVICE}: remove the hook"
            )
