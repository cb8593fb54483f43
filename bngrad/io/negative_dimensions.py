"""Extents below 0, which a model says of values whose extents it does not know.

ONNX Runtime takes them so. onnx's shape inference takes them for numbers: they contradict what it infers, and a
Slice of such data ends the process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Iterator


def forget_negative_extents(model: ir.Model) -> None:
    """Makes every extent below 0 in the shapes of a model one that is not known."""
    for value in _values(model):
        if value.shape is not None and has_negative_extent(value.shape):
            value.shape = ir.Shape([None if _is_negative(extent) else extent for extent in value.shape])


def has_negative_extent(shape: ir.Shape) -> bool:
    """Whether an extent of a shape is a number below 0."""
    return any(map(_is_negative, shape))


def _is_negative(extent: int | ir.SymbolicDim) -> bool:
    return isinstance(extent, int) and extent < 0


def _values(model: ir.Model) -> Iterator[ir.Value]:
    """All of its values but initializers, which have their shapes from their data."""
    scopes: list[ir.Graph | ir.Function] = [*model.graphs(), *model.functions.values()]
    for scope in scopes:
        yield from scope.inputs
        for node in scope:
            yield from node.outputs
