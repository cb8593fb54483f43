"""Runs a module with its loss in PyTorch, on copies of its tensors."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from bngrad.errors import BngradError, InputError, ModelError
from bngrad.torch.capture import first_line
from bngrad.torch.custom_gradients import functions
from bngrad.torch.forward import LOSS, NEW, Forward, tensor_text, user_name
from bngrad.torch.refused_ops import RefusedOps
from bngrad.torch.untouched import Changes, untouched

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from bngrad.torch.example import Example
    from bngrad.torch.watch import Watch


class Eager(NamedTuple):
    """The results of one forward and backward pass of a module."""

    loss: torch.Tensor
    new: dict[str, torch.Tensor]
    """The buffers, and the parameters that require no gradient, after the forward pass."""
    gradients: dict[str, torch.Tensor]
    """The gradients of the loss with respect to the trained parameters that it depends on."""
    changes: Changes
    """The changes that the pass makes to anything but tensors."""
    recomputed: list[str]
    """The buffers that the backward pass changes again, where a checkpoint runs a batch norm a second time."""
    functions: list[str]
    """Each `torch.autograd.Function` that the loss depends on."""


def run_eager(
    forward: Forward,
    example: Example,
    trained: Collection[str],
    *,
    state: Mapping[str, torch.Tensor] | None = None,
    dtype: torch.dtype | None = None,
    watch: Watch | None = None,
) -> Eager:
    """Runs a forward and a backward pass. The module is not changed.

    Args:
        forward: The module and its loss.
        example: The arguments.
        trained: The parameters to differentiate with respect to, by the user's names.
        state: Values that replace those of parameters and buffers, by the user's names.
        dtype: The type that all floats are converted to; by default they keep theirs.
        watch: Watches the pass.
    """

    def converted(value: Any) -> Any:  # noqa: ANN401 - any leaf
        if not isinstance(value, torch.Tensor):
            return value
        return _with_type(value.detach().clone(), dtype)

    state = state or {}
    tensors = {name: converted(state.get(name, tensor)) for name, tensor in forward.tensors().items()}
    wrt = [name for name in trained if name in tensors]
    for name in wrt:
        tensors[name].requires_grad_(True)
    before = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    arguments = pytree.tree_map(converted, example.arguments)
    used: list[str] = []
    again: list[str] = []
    one_pass = _Pass(forward, [tensors[name] for name in wrt], used.extend, again.extend)
    named = (*one_pass.named_parameters(), *one_pass.named_buffers())
    full = {name: tensors[user_name(name.removeprefix("forward_module."))] for name, _ in named}
    mode = nullcontext() if dtype is None else InType(dtype)
    inputs = [*tensors.values(), *pytree.tree_leaves(arguments)]
    watching = nullcontext() if watch is None else watch.watching(inputs)
    with (
        untouched(one_pass) as changes,
        torch.enable_grad(),
        mode,
        RefusedOps(None if watch is None else watch.errors),
        watching,
    ):
        try:
            values = torch.func.functional_call(one_pass, full, arguments)
        except BngradError:
            raise
        except Exception as error:
            raise InputError(f"PyTorch cannot run a step of the module: {first_line(error)}") from error
        names = list(forward.output_names)
    outputs = dict(zip(names, values, strict=True))
    loss = outputs.pop(LOSS)
    untrained = {f"{name}{NEW}": name for name in tensors if name not in wrt}
    result = Eager(
        loss.detach(),
        {untrained[name]: tensor.detach() for name, tensor in outputs.items() if name in untrained},
        {name: gradient.to_dense() for name in wrt if (gradient := tensors[name].grad) is not None},
        changes,
        again,
        used,
    )
    _refuse_other_state(before, {name: tensors[name] for name in wrt} | result.new, wrt)
    return result


def _refuse_other_state(
    before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor], trained: Collection[str]
) -> None:
    for name, old in before.items():
        new = after.get(name, old)
        if name in trained and not torch.equal(new.detach(), old):
            raise ModelError(
                f"the forward pass writes to {name!r}, which is trained; expected only the optimizer to write to "
                "it: compute a new tensor in forward, or change the parameter between steps"
            )
        if (new.shape, new.dtype) != (old.shape, old.dtype):
            raise ModelError(
                f"the forward pass replaces {tensor_text(old)} {name!r} by {tensor_text(new)}; expected buffers "
                "to keep their shape and type"
            )


class _Pass(torch.nn.Module):
    """A forward and a backward pass, both with the given tensors: in the latter, checkpoints rerun the module."""

    def __init__(
        self,
        forward: Forward,
        wrt: Sequence[torch.Tensor],
        used: Callable[[list[str]], None],
        again: Callable[[list[str]], None],
    ) -> None:
        super().__init__()
        self.forward_module, self._wrt, self._used, self._again = forward, list(wrt), used, again

    def forward(self, *arguments: Any) -> tuple[torch.Tensor, ...]:  # noqa: ANN401
        values: tuple[torch.Tensor, ...] = self.forward_module(*arguments)
        self._used(functions(values[0]))
        if self._wrt and values[0].requires_grad:
            after = [value.detach() for value in values]
            values = (values[0], *(value.detach().clone() for value in values[1:]))
            torch.autograd.backward(values[0], inputs=self._wrt, retain_graph=True)
            names = zip(self.forward_module.output_names, values, after, strict=True)
            self._again([name.removesuffix(NEW) for name, value, new in names if not _equal(value, new)])
        return values


def _equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    return torch.equal(first, second) or bool(((first == second) | (first.isnan() & second.isnan())).all())


class InType(TorchFunctionMode):
    """While it is active, functions take and return one type of real floats, also for a module's constants."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Calls a function of PyTorch."""
        args, kwargs = self._tree((tuple(args), dict(kwargs or {})))
        return self._tree(func(*args, **kwargs))

    def _tree(self, values: Any) -> Any:  # noqa: ANN401 - any structure
        # A torch.Size that becomes a tuple is data for Tensor.new.
        return pytree.tree_map(self._converted, values, is_leaf=lambda value: isinstance(value, torch.Size))

    def _converted(self, value: Any) -> Any:  # noqa: ANN401 - any leaf
        return _with_type(value, self._dtype) if isinstance(value, torch.Tensor) else value


def _with_type(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """A tensor with another type of real floats, or the complex type of it."""
    if dtype is None or not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    return tensor.to(dtype.to_complex() if tensor.is_complex() else dtype)
