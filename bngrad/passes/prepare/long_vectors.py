"""Finds long vectors that onnx's data propagation would expand into as many dimensions as they have elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from bngrad.graph.nodes import all_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_MAX_LENGTH = 1 << 20
"""The largest length of a vector that data propagation may expand."""
_MAX_SIZE = 1 << 24
"""The largest size in a shape of several dimensions; inference may produce a vector of that length."""
_MAX_SHAPE_ELEMENTS = 64
"""The largest number of elements of a constant that may be a shape."""
_SLICE_TO_END = 1 << 62
"""The smallest number that means "to the end" in a Slice."""
_FORWARDING_OPS = ("Cast", "Concat", "Gather", "Identity", "Squeeze", "Unsqueeze")
"""Ops whose output contains elements of their inputs."""


def may_have_long_vector(model: ir.Model) -> bool:
    """Returns whether the model may have a vector that is too long for data propagation.

    The vector may appear only during inference, with a length that is a size in another shape or a number in a
    constant of the model.
    """
    for numbers, value in _small_integers(model):
        long = numbers[numbers > _MAX_LENGTH]
        if long.size and not (long.min() >= _SLICE_TO_END and _used_only_by_slices(value)):
            return True
    values = {*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()}
    values |= {value for node in all_nodes(model) for value in node.outputs}
    shapes = [value.shape for value in values if value.shape is not None]
    return any(
        isinstance(size, int) and size > (_MAX_LENGTH if len(shape) == 1 else _MAX_SIZE)
        for shape in shapes
        for size in shape
    )


def _used_only_by_slices(value: ir.Value) -> bool:
    """Tests whether only starts, ends, axes or steps of Slices use a value, possibly through forwarding ops."""
    seen, waiting = {value}, [value]
    while waiting:
        value = waiting.pop()
        for node, index in value.uses():
            if node.op_type in _FORWARDING_OPS:
                waiting += set(node.outputs) - seen
                seen.update(node.outputs)
            elif node.op_type != "Slice" or index == 0:
                return False
    return True


def _small_integers(model: ir.Model) -> Iterator[tuple[NDArray[np.int64], ir.Value]]:
    """Yields the elements of each integer constant that may be a shape, and its value."""
    tensors = [(value.const_value, value) for value in model.graph.initializers.values()]
    # onnx-ir's helper is not used: it names the tensor of a Constant, which the caller's model shares.
    for node in all_nodes(model):
        for attribute in node.attributes.values() if node.op_type == "Constant" and node.outputs else ():
            if attribute.is_ref():
                continue
            if attribute.type == ir.AttributeType.TENSOR:
                tensors.append((attribute.as_tensor(), node.outputs[0]))
            elif attribute.type in (ir.AttributeType.INT, ir.AttributeType.INTS):
                yield np.reshape(np.asarray(attribute.value, dtype=np.int64), -1), node.outputs[0]
    for tensor, value in tensors:
        if tensor is not None and tensor.dtype == ir.DataType.INT64 and tensor.size <= _MAX_SHAPE_ELEMENTS:
            yield tensor.numpy().ravel(), value
