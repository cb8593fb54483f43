"""Watches a forward pass in PyTorch for calls that an exported graph would drop."""

from __future__ import annotations

import sys
import traceback
from bisect import bisect_left
from contextlib import contextmanager
from pathlib import Path
from types import GetSetDescriptorType
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from bngrad.errors import BngradError, UnsupportedNodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from types import FrameType

ADVICE = "bngrad derives gradients only from the forward pass, so this one would be lost"

_TORCH, _BNGRAD = (str(Path(file).parent) for file in (torch.__file__, __file__))
_PYTHON = Path(traceback.__file__).parent

_HOOKS = {
    "Tensor.register_hook": f"calls Tensor.register_hook in its forward; {ADVICE}: remove it",
    "Tensor.register_post_accumulate_grad_hook": (
        f"calls Tensor.register_post_accumulate_grad_hook in its forward; {ADVICE}: remove it"
    ),
    "Tensor.grad_fn.__get__": f"reads Tensor.grad_fn in its forward, as for a hook; {ADVICE}: remove it",
}
"""Calls that change a backward pass of PyTorch's autograd, but not one that is derived from the forward pass."""
_NESTED = "in its forward, which PyTorch's exporter cannot trace; expected a loss without gradients"
_UNTRACED = {
    "torch.autograd.grad": f"calls torch.autograd.grad {_NESTED}",
    "Tensor.backward": f"calls Tensor.backward {_NESTED}",
    "Tensor.detach_": "calls Tensor.detach_, which PyTorch's exporter drops; assign x.detach() instead",
    "Tensor.grad.__set__": (
        "writes to Tensor.grad in its forward, which a training graph does not have; add to the loss instead"
    ),
}
_ALIAS = (
    "reads the memory of the {} {!r} by another tensor, such as a kept detach() or .data, which would be a "
    "constant; read the attribute of the module and detach it there, or keep a clone()"
)
_VALUES = ("__bool__", "__float__", "__index__", "__int__", "item", "numpy", "tolist")
_IN_PYTHON = {f"Tensor.{name}": f"Tensor.{name}" for name in _VALUES} | {"Tensor.data.__get__": "Tensor.data"}


class Watch(TorchFunctionMode):
    """While it is active, calls that an exported graph would drop are noted.

    Args:
        tensors: The module's parameters and buffers, by the user's names. The pass runs with copies of them.
        trained: The names of those that are trained.
        custom_gradients: Whether gradients that the module defines are exported.
    """

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], trained: Collection[str], *, custom_gradients: bool = False
    ) -> None:
        super().__init__()
        self.errors: dict[str, BngradError] = {}
        """The reasons why the pass cannot be exported, in the order of the calls."""
        self.in_python: dict[str, None] = {}
        """The calls by which Python gets the value of a tensor, or its data."""
        self.foreign: dict[str, None] = {}
        """Tensors that require a gradient and are not the module's."""
        self._tensors, self._trained = tensors, frozenset(trained)
        self._originals = {id(tensor): name for name, tensor in tensors.items() if name in trained}
        self._ranges = sorted(memory_ranges(tensors))
        self._aliased: dict[str, str] = {}
        self._refused = _UNTRACED if custom_gradients else _HOOKS | _UNTRACED
        self._known: dict[int, torch.Tensor] = {}

    @contextmanager
    def watching(self, copies: Collection[torch.Tensor]) -> Iterator[None]:
        """Watches a pass that runs with copies of the tensors."""
        self._known = {id(tensor): tensor for tensor in copies}
        enter = saved_tensors_hooks.__enter__

        def refuse_and_enter(hooks: saved_tensors_hooks) -> None:
            if type(hooks) is saved_tensors_hooks and self._refused is not _UNTRACED:  # not those of checkpoints
                self._refuse(f"uses saved_tensors_hooks in its forward; {ADVICE}: remove them", _place())
            enter(hooks)

        replaced: Any = saved_tensors_hooks
        replaced.__enter__ = refuse_and_enter
        try:
            with self:
                yield
        finally:
            replaced.__enter__ = enter
            self._known = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Calls a function of PyTorch."""
        name = _name(func)
        if name in self._refused:
            self._refuse(self._refused[name], _place(by_user=name == "Tensor.grad_fn.__get__"))
        elif name in _IN_PYTHON and (place := _place()):
            self.in_python.setdefault(f"{_IN_PYTHON[name]} at {place}")
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor):
                self._note_memory(leaf)
                if leaf.is_leaf:
                    self._note_leaf(leaf)
        result = func(*args, **kwargs or {})
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.is_leaf:
                self._known.setdefault(id(leaf), leaf)  # kept, so that no other tensor gets its id
        return result

    def _note_leaf(self, leaf: torch.Tensor) -> None:
        if id(leaf) in self._known:
            return
        if id(leaf) in self._originals:
            self._refuse(
                f"reads the parameter {self._originals[id(leaf)]!r} by another reference than its attribute, "
                "such as a list or a variable, which would be a constant; read the attribute of the module",
                _place() or "PyTorch's code",
            )
        elif leaf.requires_grad:
            self.foreign.setdefault(f"{list(leaf.shape)} at {_place() or 'PyTorch'}")

    def _note_memory(self, tensor: torch.Tensor) -> None:
        """Notes a tensor that shares memory with one of the module's, of which the pass has copies."""
        if id(tensor) in self._originals:
            return
        for begin, end, _ in memory_ranges({"": tensor}):
            # The ranges do not overlap, so only the last one that begins before the end may contain it.
            index = bisect_left(self._ranges, (end,)) - 1
            if index >= 0 and self._ranges[index][1] > begin and (place := _place() or "PyTorch's code"):
                name = self._ranges[index][2]
                if name in self._trained:
                    self._refuse(_ALIAS.format("parameter", name), place)
                else:
                    self._aliased.setdefault(name, place)

    def changed_aliases(self, new: Mapping[str, torch.Tensor]) -> Iterator[BngradError]:
        """The errors for tensors in the memory of buffers that the pass changes.

        Args:
            new: The buffers after the pass.
        """
        for name, place in self._aliased.items():
            if name in new and not torch.equal(new[name], self._tensors[name]):
                yield UnsupportedNodeError(f"the module {_ALIAS.format('buffer', name)} ({place})")

    def _refuse(self, what: str, place: str | None) -> None:
        if place is not None:
            self.errors.setdefault(what, UnsupportedNodeError(f"the module {what} ({place})"))


def memory_ranges(tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[int, int, str]]:
    """The addresses at which tensors begin and end, and their names; tensors without memory are left out."""
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or not tensor.numel():
            continue
        try:
            begin = tensor.data_ptr()
        except RuntimeError:  # a wrapper of torch.func or a subclass without memory of its own
            continue
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        if begin:
            yield begin, begin + (last + 1) * tensor.element_size(), name


def _name(func: Callable[..., Any]) -> str:
    owner = getattr(func, "__self__", None)
    if isinstance(owner, GetSetDescriptorType):
        return f"Tensor.{owner.__name__}.{func.__name__}"
    if hasattr(func, "__objclass__"):
        return f"Tensor.{func.__name__}"
    name = getattr(func, "__qualname__", "")
    return name if name.startswith("Tensor.") else f"{getattr(func, '__module__', '')}.{name}"


def place_of(error: BaseException) -> str | None:
    """The last line of the user's code that an error passed, with its place; None if it passed none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((_TORCH, _BNGRAD)) and Path(frame.filename).parent != _PYTHON:
            return f"{Path(frame.filename).name}:{frame.lineno}, {(frame.line or '')[:100]!r}"
    return None


def _place(*, by_user: bool = False) -> str | None:
    """The line of the module that called a function; None if bngrad called it.

    Args:
        by_user: Whether calls by functions of PyTorch do not count.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_BNGRAD) and file != __file__:
            return None
        if not file.startswith((_TORCH, _BNGRAD)):
            return f"{Path(file).name}:{frame.f_lineno}"
        if by_user and file.startswith(_TORCH) and not file.endswith("overrides.py"):
            return None
        frame = frame.f_back
    return None
