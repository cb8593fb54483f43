"""Vectors so long that onnx's shape inference must not take them for shapes: it lists as many dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from bngrad.graph.nodes import all_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_LONGEST_SHAPE = 1 << 20
_LONGEST_EXTENT = 1 << 24
"""Of a value of several dimensions, one of which inference may leave as a vector."""
_MOST_EXTENTS = 64
"""Of a constant that may be a shape."""
_ENDLESS = 1 << 62
_HANDED_ON = ("Cast", "Concat", "Gather", "Identity", "Squeeze", "Unsqueeze")
"""Ops whose output has the numbers of their input."""


def may_have_long_vector(model: ir.Model) -> bool:
    """Whether a vector is so long that onnx, which may take it for a shape, would make as many dimensions.

    It may be one that is only inferred, of an extent that other values have, or that is a number in the model.
    """
    for numbers, value in _small_integers(model):
        long = numbers[numbers > _LONGEST_SHAPE]
        # A Slice to the end has the largest numbers.
        if long.size and not (long.min() >= _ENDLESS and _only_slices(value)):
            return True
    values = {*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()}
    values |= {value for node in all_nodes(model) for value in node.outputs}
    shapes = [value.shape for value in values if value.shape is not None]
    return any(
        isinstance(extent, int) and extent > (_LONGEST_SHAPE if len(shape) == 1 else _LONGEST_EXTENT)
        for shape in shapes
        for extent in shape
    )


def _only_slices(value: ir.Value) -> bool:
    """Whether nothing reads a value but Slices that begin or end there, and what hands it on to them."""
    seen, found = {value}, [value]
    while found:
        value = found.pop()
        for node, index in value.uses():
            if node.op_type in _HANDED_ON:
                found += set(node.outputs) - seen
                seen.update(node.outputs)
            elif node.op_type != "Slice" or index == 0:
                return False
    return True


def _small_integers(model: ir.Model) -> Iterator[tuple[NDArray[np.int64], ir.Value]]:
    """The numbers of each integer constant that may be a shape."""
    tensors = [(value.const_value, value) for value in model.graph.initializers.values()]
    # Not as onnx-ir's helper reads them: it gives a Constant's tensor a name, in the caller's model too.
    for node in all_nodes(model):
        for attribute in node.attributes.values() if node.op_type == "Constant" and node.outputs else ():
            if attribute.is_ref():
                continue
            if attribute.type == ir.AttributeType.TENSOR:
                tensors.append((attribute.as_tensor(), node.outputs[0]))
            elif attribute.type in (ir.AttributeType.INT, ir.AttributeType.INTS):
                yield np.reshape(np.asarray(attribute.value, dtype=np.int64), -1), node.outputs[0]
    for tensor, value in tensors:
        if tensor is not None and tensor.dtype == ir.DataType.INT64 and tensor.size <= _MOST_EXTENTS:
            yield tensor.numpy().ravel(), value
