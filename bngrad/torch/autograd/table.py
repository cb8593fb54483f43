"""The table of ops: each is a function of tensors, which PyTorch differentiates.

A function's positional arguments are the inputs of the op, where None stands for one that is absent; its keyword
arguments are the attributes. It returns the first output, or a tuple of the first outputs. An attribute that the
function does not take is refused by name.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    Result: TypeAlias = torch.Tensor | tuple[torch.Tensor, ...]
    Function: TypeAlias = Callable[..., Result]

ELSEWHERE = "use --against reference or numeric"
"""What to do about a model that PyTorch cannot run."""


class UnsupportedFormError(Exception):
    """A function cannot compute this form of its op; the message says what the node has, after its name."""


@dataclass(frozen=True)
class Op:
    """An op of the table."""

    function: Function
    since: int
    """The oldest version of the op that the function computes."""

    @property
    def attributes(self) -> frozenset[str]:
        """The attributes that the function takes; PyTorch's own functions take none."""
        if inspect.isbuiltin(self.function):
            return frozenset()
        parameters = inspect.signature(self.function).parameters.values()
        return frozenset(one.name for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY)


OPS: dict[tuple[str, str], Op] = {}
"""(domain, op type) -> the op; empty until `bngrad.torch.autograd.ops` is imported."""


def op(*op_types: str, domain: str = "", since: int = 1) -> Callable[[Function], Function]:
    """Registers a function as that of some ops.

    Args:
        op_types: The ops.
        domain: Their domain.
        since: See `Op`.

    Raises:
        ValueError: An op has a function already.
    """

    def register(function: Function) -> Function:
        for op_type in op_types:
            if (domain, op_type) in OPS:
                raise ValueError(f"{domain}.{op_type} has two functions")
            OPS[domain, op_type] = Op(function, since)
        return function

    return register


def numbers(tensor: torch.Tensor) -> list[Any]:
    """The elements of a tensor of integers, such as axes, as a list."""
    return list(tensor.detach().flatten().tolist())


def float32(value: float) -> float:
    """The float32 that is the default of an attribute, as a float."""
    return float(np.float32(value))
