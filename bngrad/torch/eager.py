"""Runs a module with its loss in PyTorch, on copies of its tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from bngrad.torch.forward import LOSS, NEW, Forward
from bngrad.torch.untouched import untouched

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from bngrad.torch.example import Example


class Eager(NamedTuple):
    """What one pass of a module gives."""

    loss: torch.Tensor
    outputs: dict[str, torch.Tensor]
    """The tensors among its outputs, by the names of the exported model."""
    new: dict[str, torch.Tensor]
    """The buffers, and the parameters that require no gradient, after the pass."""
    gradients: dict[str, torch.Tensor]
    """Those of the loss with respect to the trained parameters that it depends on."""


def run_eager(
    forward: Forward,
    example: Example,
    trained: Collection[str],
    *,
    state: Mapping[str, torch.Tensor] | None = None,
    dtype: torch.dtype | None = None,
) -> Eager:
    """Runs a forward and a backward pass. The module is not changed.

    Args:
        forward: The module and its loss.
        example: The arguments.
        trained: The parameters to differentiate with respect to, by the user's names.
        state: Values that replace those of parameters and buffers, by the user's names.
        dtype: The type that all floats are converted to; by default they keep theirs.
    """

    def converted(value: Any) -> Any:  # noqa: ANN401 - any leaf
        if not isinstance(value, torch.Tensor):
            return value
        changes = dtype is not None and value.is_floating_point()
        return value.detach().clone().to(dtype if changes else value.dtype)

    state = state or {}
    tensors = {name: converted(state.get(name, one)) for name, one in forward.tensors().items()}
    wrt = [name for name in trained if name in tensors]
    for name in wrt:
        tensors[name].requires_grad_(True)
    full = {name if name.startswith("loss_fn.") else f"module.{name}": one for name, one in tensors.items()}
    arguments = pytree.tree_map(converted, example.arguments)
    with untouched(forward), torch.enable_grad():
        values = torch.func.functional_call(forward, full, arguments)
        names = list(forward.output_names)
    found = dict(zip(names, values, strict=True))
    loss = found.pop(LOSS)
    gradients = (
        torch.autograd.grad(loss, [tensors[name] for name in wrt], allow_unused=True)
        if loss.requires_grad and wrt
        else [None] * len(wrt)
    )
    untrained = {f"{name}{NEW}": name for name in tensors if name not in wrt}
    return Eager(
        loss.detach(),
        {name: one.detach() for name, one in found.items() if name not in untrained},
        {untrained[name]: one.detach() for name, one in found.items() if name in untrained},
        {name: one for name, one in zip(wrt, gradients, strict=True) if one is not None},
    )
