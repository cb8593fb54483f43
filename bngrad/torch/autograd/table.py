"""The table of ops: each is a function of tensors, which PyTorch differentiates.

A function's positional arguments are the inputs of the op, where None stands for one that is absent; its keyword
arguments are the attributes. It returns the first output, or a tuple of the first outputs. An attribute that the
function does not take is refused by name. An attribute that is a graph is a `Body`; ``outputs`` and ``version``
are the number of outputs of the node and the version of its op.
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import Parameter, isbuiltin, signature
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import onnx_ir as ir

    Value: TypeAlias = torch.Tensor | list[torch.Tensor] | None
    """A tensor, a sequence, or an optional without an element."""
    Function: TypeAlias = Callable[..., Any]

ELSEWHERE = "use --against reference or numeric"
"""The advice for a model that PyTorch cannot run."""


class UnsupportedFormError(Exception):
    """A function cannot compute this form of its op; the message states the form, after the node's name."""


@dataclass(frozen=True)
class Body:
    """A body of a node, which reads the values around it."""

    run: Callable[[Sequence[Value]], list[Any]]
    outputs: Sequence[ir.Value]

    def __call__(self, *inputs: Value) -> list[Any]:
        """Runs the body, and returns its outputs."""
        return self.run(inputs)

    def empty(self, index: int) -> torch.Tensor:
        """Returns zeros of the type of an output, whose unknown dimensions are 0."""
        output = self.outputs[index]
        shape = [size if isinstance(size, int) else 0 for size in output.shape or ()]
        return torch.from_numpy(np.zeros(shape, output.dtype.numpy() if output.dtype else np.float64))


@dataclass(frozen=True)
class Op:
    """An op of the table."""

    function: Function
    since: int
    """The oldest version of the op that the function computes."""

    @property
    def attributes(self) -> frozenset[str]:
        """The attributes that the function takes; PyTorch's own functions take none."""
        if isbuiltin(self.function):
            return frozenset()
        parameters = signature(self.function).parameters.values()
        return frozenset(parameter.name for parameter in parameters if parameter.kind is Parameter.KEYWORD_ONLY)


OPS: dict[tuple[str, str], Op] = {}
"""(domain, op type) -> the op; empty until `bngrad.torch.autograd.ops` is imported."""


def op(*op_types: str, domain: str = "", since: int = 1) -> Callable[[Function], Function]:
    """Registers a function as that of some ops.

    Args:
        op_types: The ops.
        domain: Their domain.
        since: The oldest version of the ops that the function computes.

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
