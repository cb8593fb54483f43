"""A module and its loss as one module, whose outputs are named tensors.

PyTorch's exporter drops writes to buffers in a forward pass, so the written values are outputs, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from bngrad.errors import InputError
from bngrad.graph.fresh_names import free_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOSS = "loss"
NEW = "_new"
"""The suffix that turns the name of a buffer into that of the output with its next value."""


class _CallRecord:
    """Output names recorded during a call; `torch.export` restores the attributes of the module itself."""

    def __init__(self) -> None:
        self.names: list[str] = []


class Forward(torch.nn.Module):
    """Computes a loss, the module's outputs, and the values after the pass of the tensors that are not trained.

    Args:
        module: The module.
        loss_fn: The loss function; None if the module returns its loss.
        custom_gradients: Whether gradients that the module defines are exported.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        loss_fn: Callable[..., torch.Tensor] | None,
        *,
        custom_gradients: bool = False,
    ) -> None:
        super().__init__()
        self.module = module
        self.custom_gradients = custom_gradients
        self.loss_fn = loss_fn  # registered as a submodule if it is one
        self._record = _CallRecord()
        self.taken: set[str] = set()
        """The names of inputs, which no output gets."""

    @property
    def output_names(self) -> list[str]:
        """The names of the outputs of the last call."""
        return self._record.names

    def forward(self, args: Any, kwargs: Any, targets: Any) -> tuple[torch.Tensor, ...]:  # noqa: ANN401
        """Returns the loss, the tensors among the module's outputs, and `untrained`."""
        loss, outputs = self.loss_and_outputs(args, kwargs, targets)
        new = {f"{name}{NEW}": tensor for name, tensor in self.untrained().items()}
        return self._named({LOSS: loss, **_tensors(outputs, taken=self._reserved(), but=loss)} | new)

    def loss_and_outputs(self, args: Any, kwargs: Any, targets: Any) -> tuple[torch.Tensor, Any]:  # noqa: ANN401
        """Runs the module.

        Raises:
            InputError: The loss is not a float scalar.
        """
        outputs = self.module(*args, **kwargs)
        loss, outputs = _split(outputs) if self.loss_fn is None else (self.loss_fn(outputs, *targets), outputs)
        _require_loss(loss)
        return loss, outputs

    def untrained(self) -> dict[str, torch.Tensor]:
        """The buffers, and the parameters that require no gradient, by name."""
        return {name: tensor for name, tensor in self.tensors().items() if not tensor.requires_grad}

    def tensors(self) -> dict[str, torch.Tensor]:
        """The parameters and buffers, each once, under the module's own names; those of the loss have a prefix."""
        named = (*self.named_parameters(), *self.named_buffers())
        return {user_name(name): tensor for name, tensor in named}

    def _reserved(self) -> set[str]:
        names = set(self.tensors())
        return {LOSS, *self.taken, *names, *(f"{name}{NEW}" for name in names)}

    def _named(self, outputs: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        self._record.names = list(outputs)
        return tuple(outputs.values())


class Inference(Forward):
    """Computes the module's outputs in evaluation mode, and the loss if it has one there.

    Args:
        forward: The module and its loss function.
        with_loss: Whether to compute the loss.
    """

    def __init__(self, forward: Forward, *, with_loss: bool) -> None:
        super().__init__(forward.module, forward.loss_fn)
        self._with_loss = with_loss
        self.taken = forward.taken

    def forward(self, args: Any, kwargs: Any, targets: Any) -> tuple[torch.Tensor, ...]:  # noqa: ANN401
        """Returns the loss, if it is computed, and the tensors among the module's outputs."""
        if not self._with_loss:
            return self._named(_tensors(self.module(*args, **kwargs), taken=self._reserved()))
        loss, outputs = self.loss_and_outputs(args, kwargs, targets)
        return self._named({LOSS: loss, **_tensors(outputs, taken=self._reserved(), but=loss)})


def user_name(name: str) -> str:
    """The name of a parameter or buffer of `Forward` in the user's module; one of the loss keeps its prefix."""
    return name.removeprefix("module.")


def dtype_name(tensor: torch.Tensor) -> str:
    """The name of a tensor's type in NumPy."""
    return str(tensor.dtype).removeprefix("torch.")


def tensor_text(tensor: torch.Tensor) -> str:
    """A tensor's type and shape, for messages."""
    return f"{dtype_name(tensor)}{list(tensor.shape)}"


def _split(outputs: Any) -> tuple[Any, Any]:  # noqa: ANN401 - whatever a module returns
    """The loss that a module returns, and its outputs."""
    if isinstance(outputs, torch.Tensor):
        return outputs, ()
    if isinstance(outputs, Mapping) and "loss" in outputs:
        return outputs["loss"], {name: value for name, value in outputs.items() if name != "loss"}
    if isinstance(getattr(outputs, "loss", None), torch.Tensor):
        return outputs.loss, outputs
    if isinstance(outputs, tuple | list) and outputs:
        return outputs[0], tuple(outputs[1:])
    raise InputError(
        f"the module returns a {type(outputs).__name__} without a loss; expected a scalar, a tuple that begins "
        "with one, or one under 'loss': pass a loss_fn"
    )


def _require_loss(loss: object) -> None:
    if not isinstance(loss, torch.Tensor) or loss.ndim or not loss.is_floating_point():
        what = tensor_text(loss) if isinstance(loss, torch.Tensor) else f"a {type(loss).__name__}"
        raise InputError(f"the loss is {what}; expected a float scalar: take a mean or a sum in loss_fn")


def _tensors(outputs: Any, *, taken: set[str], but: object = None) -> dict[str, torch.Tensor]:  # noqa: ANN401
    """The tensors of outputs, each once, by name: ``output``, or ``output_<key>_<index>`` if they are nested."""
    tensors: dict[str, torch.Tensor] = {}
    seen = {id(but)}
    for path, tensor in _leaves(outputs, ()):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[free_name("_".join(path) or "output", taken | tensors.keys())] = tensor
    return tensors


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], torch.Tensor]]:  # noqa: ANN401
    if isinstance(value, torch.Tensor):
        yield path, value
        return
    children: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        children = [(str(name), child) for name, child in value.items()]
    elif hasattr(value, "_fields"):
        children = [(name, getattr(value, name)) for name in value._fields]
    elif isinstance(value, tuple | list):
        children = [(f"{'' if path else 'output_'}{index}", child) for index, child in enumerate(value)]
    for name, child in children:
        yield from _leaves(child, (*path, name))
