"""Reads an example: the names and shapes of a model's inputs, and which go to the module or to the loss."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from bngrad.errors import InputError
from bngrad.graph.fresh_names import free_name
from bngrad.graph.name_messages import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence


@dataclass(frozen=True)
class Example:
    """The arguments of one call of a module and of its loss function."""

    args: tuple[Any, ...]
    """The module's positional arguments."""
    kwargs: dict[str, Any]
    """Its keyword arguments."""
    targets: tuple[Any, ...]
    """The loss function's arguments after the module's output."""
    names: tuple[str, ...]
    """A name for each tensor, in the order of `flat`."""

    @property
    def arguments(self) -> tuple[Any, ...]:
        """All arguments, as `Forward` takes them."""
        return self.args, self.kwargs, self.targets

    @property
    def flat(self) -> list[torch.Tensor]:
        """The tensors."""
        return [leaf for leaf in pytree.tree_leaves(self.arguments) if isinstance(leaf, torch.Tensor)]

    def feeds(self) -> dict[str, Any]:
        """The tensors as NumPy arrays, by name."""
        return {name: tensor.detach().cpu().numpy() for name, tensor in zip(self.names, self.flat, strict=True)}

    @property
    def batch(self) -> int | None:
        """The size of the first dimension of the first tensor that has one."""
        return next((int(tensor.shape[0]) for tensor in self.flat if tensor.ndim > 0), None)


def read_example(
    module: torch.nn.Module,
    loss_fn: Callable[..., torch.Tensor] | None,
    example: Any,  # noqa: ANN401 - any structure
    input_names: Sequence[str] | None,
    reserved: Collection[str] = (),
) -> Example:
    """Reads an example as users give it.

    Args:
        module: The module.
        loss_fn: The loss function; None if the module returns its loss.
        example: ``(inputs, *targets)`` with a loss function, else the inputs: a tensor, a sequence of positional
            arguments, or a dict of keyword arguments.
        input_names: A name for each tensor; by default those of the parameters that take them.
        reserved: Names of other values of the model.

    Raises:
        InputError: The example does not have that form, or the names do not fit.
    """
    targets: tuple[Any, ...] = ()
    inputs = example
    if loss_fn is not None:
        if not isinstance(example, tuple | list) or not example:
            raise InputError(
                f"example is {_kind(example)}; expected (inputs, *targets), such as (images, labels): the module "
                "takes the inputs, and loss_fn its output and the targets"
            )
        inputs, *rest = example
        targets = tuple(rest)
    if isinstance(inputs, Mapping):
        args, kwargs = (), {str(name): value for name, value in inputs.items()}
    else:
        args, kwargs = (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), {}
    names = _default_names(module, loss_fn, args, kwargs, targets, reserved)
    if input_names is not None:
        if isinstance(input_names, str) or len(set(input_names)) != len(names):
            raise InputError(
                f"input_names is {input_names!r}; expected {len(names)} different names, one for each tensor of "
                f"the example: {', '.join(names)} by default"
            )
        names = [str(name) for name in input_names]
        if used := [name for name in names if name in reserved]:
            raise InputError(f"input_names has {listed(used)}, which the module or its loss has; rename it")
    result = Example(args, kwargs, targets, tuple(names))
    if not result.flat:
        raise InputError(f"example is {_kind(example)} without a tensor; expected the tensors of one batch")
    return result


def _default_names(
    module: torch.nn.Module,
    loss_fn: Callable[..., torch.Tensor] | None,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    targets: tuple[Any, ...],
    reserved: Collection[str],
) -> list[str]:
    parameters = _parameters(module.forward, len(args), "input")
    named: list[tuple[str, Any]] = [*zip(parameters, args, strict=True), *kwargs.items()]
    if loss_fn is not None:
        called = loss_fn.forward if isinstance(loss_fn, torch.nn.Module) else loss_fn
        named += zip(_parameters(called, len(targets) + 1, "target")[1:], targets, strict=True)
    taken = set(reserved)
    result = []
    for name, value in named:
        for path, leaf in pytree.tree_flatten_with_path(value)[0]:
            if isinstance(leaf, torch.Tensor):
                unique = free_name("_".join([name, *(_key(entry) for entry in path)]), taken)
                taken.add(unique)
                result.append(unique)
    return result


def _parameters(called: Callable[..., Any], count: int, otherwise: str) -> list[str]:
    """The names of the first positional parameters of a function."""
    try:
        parameters = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in positional][:count]
    missing = count - len(names)
    return names + [otherwise if missing == 1 else f"{otherwise}_{index}" for index in range(missing)]


def _key(entry: Any) -> str:  # noqa: ANN401 - one of pytree's keys
    for attribute in ("key", "idx", "name"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)


def _kind(example: object) -> str:
    return f"a {type(example).__name__}"
