"""Sequences of tensors, which exporters write for splits and chunks, and optionals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bngrad.torch.autograd.table import UnsupportedFormError, numbers, op

if TYPE_CHECKING:
    from bngrad.torch.autograd.table import Value


@op("SplitToSequence")
def split_to_sequence(
    x: Tensor, sizes: Tensor | None = None, *, axis: int = 0, keepdims: int = 1
) -> tuple[list[Tensor]]:
    """Parts of given sizes, of one size, or of 1."""
    if sizes is None:
        return ([part if keepdims else part.squeeze(axis) for part in torch.split(x, 1, axis)],)
    return (list(torch.split(x, numbers(sizes) if sizes.ndim else int(sizes.item()), axis)),)


@op("SequenceConstruct")
def sequence_construct(*parts: Tensor) -> tuple[list[Tensor]]:
    """All inputs."""
    return (list(parts),)


@op("SequenceEmpty")
def sequence_empty(*, dtype: int = 1) -> tuple[list[Tensor]]:  # noqa: ARG001 - the type of its tensors
    """No tensor."""
    return ([],)


@op("SequenceInsert")
def sequence_insert(sequence: list[Tensor], tensor: Tensor, position: Tensor | None = None) -> tuple[list[Tensor]]:
    """All tensors, and another one at a position or at the end."""
    index = len(sequence) if position is None else int(position.item())
    return ([*sequence[:index], tensor, *sequence[index:]],)


@op("SequenceErase")
def sequence_erase(sequence: list[Tensor], position: Tensor | None = None) -> tuple[list[Tensor]]:
    """All tensors but that at a position, or the last."""
    rest = list(sequence)
    del rest[-1 if position is None else int(position.item())]
    return (rest,)


@op("SequenceAt")
def sequence_at(sequence: list[Tensor], position: Tensor) -> Tensor:
    """The tensor at a position."""
    return sequence[int(position.item())]


@op("SequenceLength")
def sequence_length(sequence: list[Tensor]) -> Tensor:
    """The number of tensors."""
    return torch.tensor(len(sequence))


@op("ConcatFromSequence")
def concat_from_sequence(sequence: list[Tensor], *, axis: int, new_axis: int = 0) -> Tensor:
    """All tensors, one after the other, or along a new axis."""
    return torch.stack(sequence, axis) if new_axis else torch.cat(sequence, axis)


@op("Optional")
def optional(element: Value = None, *, type: object = None) -> tuple[Value]:  # noqa: A002, ARG001 - ONNX's name
    """The element, or none."""
    return (element,)


@op("OptionalHasElement")
def optional_has_element(element: Value = None) -> Tensor:
    """True if there is an element."""
    return torch.tensor(element is not None)


@op("OptionalGetElement")
def optional_get_element(element: Value) -> tuple[Value]:
    """The element."""
    if element is None:
        raise UnsupportedFormError("its optional has no element")
    return (element,)
