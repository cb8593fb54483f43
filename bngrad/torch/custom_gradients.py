"""Refuses gradients that PyTorch does not derive from the forward pass: an exported graph does not have them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from bngrad.errors import UnsupportedNodeError
from bngrad.torch.forward import user_name

if TYPE_CHECKING:
    from collections.abc import Iterator

_ADVICE = "bngrad derives gradients from the forward pass alone, so this one would be lost"

_PYTORCHS_OWN = (
    "torch._prims",
    "torch._library.autograd.GeneratedBackwardFor_prims_",
    "torch.utils.checkpoint.",
)
"""The functions that wrap primitive ops, and what is computed again; ops of a user's library have other names."""


@contextmanager
def refuse_new_hooks() -> Iterator[None]:
    """Refuses hooks on gradients that the block registers.

    Raises:
        UnsupportedNodeError: It registers one.
    """
    register_hook = torch.Tensor.register_hook

    def refuse_hook(_self: torch.Tensor, _hook: object) -> NoReturn:
        raise UnsupportedNodeError(f"the module calls Tensor.register_hook in its forward; {_ADVICE}: remove it")

    tensors: Any = torch.Tensor
    tensors.register_hook = refuse_hook
    try:
        yield
    finally:
        tensors.register_hook = register_hook


def refuse_functions(loss: torch.Tensor) -> None:
    """Refuses a loss that depends on a `torch.autograd.Function`, however the module called it.

    PyTorch wraps its own primitive ops, and those of libraries, in such functions, too.

    Raises:
        UnsupportedNodeError: It does; the message names the function.
    """
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
        if not name.startswith(_PYTORCHS_OWN):
            raise UnsupportedNodeError(
                f"the module calls {name}, a torch.autograd.Function, which has a backward of its own; {_ADVICE}: "
                "write it with ops of PyTorch"
            )


def refuse_registered_hooks(module: torch.nn.Module, *, of_modules: bool = True) -> None:
    """Refuses a module with hooks on gradients.

    Args:
        module: The module.
        of_modules: Whether to refuse hooks of modules, too, and not of parameters alone.

    Raises:
        UnsupportedNodeError: It has one; the message names the module or parameter.
    """
    for name, one in module.named_modules() if of_modules else ():
        if one._backward_hooks or one._backward_pre_hooks:
            raise UnsupportedNodeError(
                f"module {user_name(name)!r} has a backward hook; {_ADVICE}: remove the hook"
            )
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks:
            raise UnsupportedNodeError(
                f"parameter {user_name(name)!r} has a gradient hook; {_ADVICE}: remove the hook"
            )
