"""Negative dimensions, which some models have in place of unknown dimensions.

ONNX Runtime treats them as unknown. onnx's shape inference treats them as sizes: they conflict with inferred
shapes, and a Slice of such a value crashes the process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Iterator


def clear_negative_dimensions(model: ir.Model) -> None:
    """Makes all negative dimensions in the shapes of a model unknown."""
    for value in _values(model):
        if value.shape is not None and has_negative_dimension(value.shape):
            value.shape = ir.Shape([None if _is_negative(size) else size for size in value.shape])


def has_negative_dimension(shape: ir.Shape) -> bool:
    """Tests whether a shape has a negative dimension."""
    return any(map(_is_negative, shape))


def _is_negative(size: int | ir.SymbolicDim) -> bool:
    return isinstance(size, int) and size < 0


def _values(model: ir.Model) -> Iterator[ir.Value]:
    """Yields all values of a model except initializers, whose shapes are those of their data."""
    scopes: list[ir.Graph | ir.Function] = [*model.graphs(), *model.functions.values()]
    for scope in scopes:
        yield from scope.inputs
        for node in scope:
            yield from node.outputs
