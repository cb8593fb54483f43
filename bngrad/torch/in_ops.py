"""Writes functions of PyTorch in smaller ops, where its exporter writes them wrongly or not at all."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from torch.nn import functional
from torch.overrides import TorchFunctionMode

from bngrad.torch.cross_entropy import cross_entropy_in_ops
from bngrad.torch.embedding import embedding_bag
from bngrad.torch.instance_norm import instance_norm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_IN_OPS: Mapping[Any, Callable[..., Any]] = {
    functional.cross_entropy: cross_entropy_in_ops,
    functional.embedding_bag: embedding_bag,
    functional.instance_norm: instance_norm,
}
"""The replacement of each function; it returns NotImplemented where the exporter is right."""

_SIGNATURES = {function: inspect.signature(function) for function in _IN_OPS}


class InOps(TorchFunctionMode):
    """While it is active, functions of `torch.nn.functional` are written in smaller ops."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Calls a function of PyTorch."""
        kwargs = dict(kwargs or {})
        if func in _IN_OPS:
            bound = _SIGNATURES[func].bind(*args, **kwargs)
            bound.apply_defaults()
            result = _IN_OPS[func](**bound.arguments)
            if result is not NotImplemented:
                return result
        return func(*args, **kwargs)
