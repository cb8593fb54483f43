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

_OF_PRIMITIVE_OPS = ("torch._prims", "torch._library.autograd.GeneratedBackwardFor_prims_")
"""The functions in which PyTorch wraps its own primitive ops; an op of a user's library has another name there."""


@contextmanager
def refuse_custom_gradients(module: torch.nn.Module) -> Iterator[None]:
    """Refuses a module with hooks on gradients, and one that defines a gradient while the block runs it.

    Raises:
        UnsupportedNodeError: It does; the message names the module, parameter or function.
    """
    _refuse_hooks(module)
    apply, register_hook = torch.autograd.Function.__dict__["apply"], torch.Tensor.register_hook

    def refuse_function(  # classmethod passes the class
        cls: Any,  # noqa: ANN401
        /,
        *args: object,
        **kwargs: object,
    ) -> Any:  # noqa: ANN401
        if f"{cls.__module__}.{cls.__qualname__}".startswith(_OF_PRIMITIVE_OPS):
            return apply.__get__(None, cls)(*args, **kwargs)
        raise UnsupportedNodeError(
            f"the module calls {cls.__module__}.{cls.__qualname__}, a torch.autograd.Function, which has a "
            f"backward of its own; {_ADVICE}: write it with ops of PyTorch"
        )

    def refuse_hook(_self: torch.Tensor, _hook: object) -> NoReturn:
        raise UnsupportedNodeError(f"the module calls Tensor.register_hook in its forward; {_ADVICE}: remove it")

    replaced: Any = torch.autograd.Function
    tensors: Any = torch.Tensor
    replaced.apply = classmethod(refuse_function)
    tensors.register_hook = refuse_hook
    try:
        yield
    finally:
        replaced.apply = apply
        tensors.register_hook = register_hook


def _refuse_hooks(module: torch.nn.Module) -> None:
    for name, one in module.named_modules():
        if one._backward_hooks or one._backward_pre_hooks:
            raise UnsupportedNodeError(
                f"module {user_name(name)!r} has a backward hook; {_ADVICE}: remove the hook"
            )
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks:
            raise UnsupportedNodeError(
                f"parameter {user_name(name)!r} has a gradient hook; {_ADVICE}: remove the hook"
            )
