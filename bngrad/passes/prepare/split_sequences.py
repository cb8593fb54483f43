"""The parts into which a SplitToSequence cuts its input: PyTorch's chunk, split and unbind.

::

    s = SplitToSequence(x, [a, b])   s[1] = Split(x, [a, b])[1]
    s = SplitToSequence(x, n)        s[1] = Slice(x, n, 2 n), where the size of x is unknown
    s = SplitToSequence(x, n)        the same where a node computes the scalar n
    s = SplitToSequence(x)           s[1] = Slice(x, 1, 2), or Gather without keepdims
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bngrad.graph.constant_value import constant_value
from bngrad.graph.node_makers import NodesBefore
from bngrad.graph.subgraphs import captured_values, nodes_of, subgraphs

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.graph.builder import NodeMaker
    from bngrad.graph.fresh_names import Names


def drop_single_splits(model: ir.Model) -> None:
    """Removes the sizes of 1 from each SplitToSequence that is to drop the dimension, as PyTorch writes unbind.

    ONNX ignores ``keepdims`` where there are sizes, as shape inference does; ONNX Runtime does not if they are the
    scalar 1. Shapes of floats that were inferred from these nodes before are forgotten.
    """
    stale: set[ir.Value | None] = set()
    for node in nodes_of(model.graph):
        if _is_unbind(node):
            node.resize_inputs(1)
        elif not stale or node.domain or stale.isdisjoint((*node.inputs, *captured_values(node))):
            continue  # inference does not know ops of other domains
        stale.update((*node.outputs, *(value for body in subgraphs(node) for value in body.inputs)))
    for value in stale:
        if value is not None and value.dtype is not None and value.dtype.is_floating_point() and value.shape:
            value.shape = None


def _is_unbind(node: ir.Node) -> bool:
    if (node.domain, node.op_type) != ("", "SplitToSequence") or len(node.inputs) < 2 or node.inputs[1] is None:
        return False
    tensor = constant_value(node.inputs[1])
    is_one = tensor is not None and not len(tensor.shape) and int(tensor.numpy()) == 1
    return is_one and not node.attributes.get_int("keepdims", 1)


def scalar(make: NodeMaker, position: ir.Value) -> ir.Value:
    """Returns a position as a scalar; ONNX Runtime also takes one of shape [1]."""
    is_scalar = position.shape is not None and not len(position.shape)
    return position if is_scalar else make.op("Reshape", position, make.int64([]))


_END = np.iinfo(np.int64).max


class SplitParts:
    """The parts of the input of a SplitToSequence along an axis; nodes for them are made when they are asked for.

    Args:
        node: The node, which stays.
        x: Its input, of known rank.
        names: The source of new names.
    """

    def __init__(self, node: ir.Node, x: ir.Value, names: Names) -> None:
        assert x.shape is not None, "its rank is known"  # noqa: S101
        self._x = x
        self._make = NodesBefore(node, names, node.name or node.op_type)
        self._parts: dict[int, ir.Value] = {}
        self._axis = node.attributes.get_int("axis", 0) % len(x.shape)
        self._computed: ir.Value | None = None
        self._size: int | None = 1
        self._sizes: list[int] | None = None
        self._keepdims = True
        length = x.shape[self._axis]
        split = node.inputs[1] if len(node.inputs) > 1 else None
        tensor = None if split is None else constant_value(split)
        if split is None:
            self._keepdims = bool(node.attributes.get_int("keepdims", 1))
            self._set_size(1, length)
        elif tensor is None:
            self._size = None
            self._computed = split if split.shape is not None and not len(split.shape) else None
        elif tensor.numpy().ndim:
            self._sizes = [int(size) for size in tensor.numpy()]
        else:
            self._set_size(int(tensor.numpy()), length)

    def _set_size(self, size: int, length: int | ir.SymbolicDim) -> None:
        self._size = size if size > 0 else None
        if size > 0 and isinstance(length, int):
            self._sizes = [min(size, length - start) for start in range(0, length, size)]

    @property
    def count(self) -> int | None:
        """The number of parts; None if it depends on an unknown dimension."""
        return None if self._sizes is None else len(self._sizes)

    def part(self, index: int) -> ir.Value | None:
        """Returns the part at an index, which counts from the end if it is negative; None if there is none.

        None also where the index is negative and the number of parts is unknown.
        """
        if index < 0 and self.count is not None:
            index += self.count
        if index < 0 or (self.count is not None and index >= self.count):
            return None
        if index not in self._parts:
            if self._sizes is not None and self._keepdims:
                words = [f"part{number}" for number in range(len(self._sizes))]
                sizes = self._make.int64(self._sizes)
                values = self._make.outputs_of("Split", self._x, sizes, outputs=words, axis=self._axis)
                self._parts.update(enumerate(values))
            elif not self._keepdims:
                index_value = self._make.int64(index)
                self._parts[index] = self._make.op("Gather", self._x, index_value, axis=self._axis)
            elif self._computed is not None or self._size is not None:
                bounds = (self._bound(index), self._bound(index + 1))
                self._parts[index] = self._make.op("Slice", self._x, *bounds, self._make.int64([self._axis]))
            else:
                return None
        return self._parts[index]

    @property
    def is_single(self) -> bool:
        """True if each part is one element along the axis."""
        sizes = self._sizes if self._sizes is not None else [self._size]
        return self._computed is None and all(size == 1 for size in sizes)

    def at(self, make: NodeMaker, position: ir.Value) -> ir.Value | None:
        """Returns the part at a computed position, a scalar; None where the parts have several elements each.

        Args:
            make: The maker of its nodes.
            position: The position; if it is negative, it counts from the end.
        """
        if not self.is_single:
            return None
        index = make.op("Reshape", position, make.int64([1])) if self._keepdims else scalar(make, position)
        return make.op("Gather", self._x, index, axis=self._axis)

    def length(self, make: NodeMaker) -> ir.Value | None:
        """Returns the number of parts, a scalar; None where it is unknown."""
        if not self.is_single:
            return None
        length = make.op("Shape", self._x, start=self._axis, end=self._axis + 1)
        return make.op("Squeeze", length, make.int64([0]))

    def joined(self, make: NodeMaker, axis: int, *, new_axis: bool) -> ir.Value | None:
        """Returns the concatenation of all parts along an axis, which may be new; None where it is unknown.

        Args:
            make: The maker of its nodes.
            axis: The axis of the result.
            new_axis: Whether the parts get a dimension of 1 for it first.
        """
        rank = len(self._x.shape or ()) - (not self._keepdims)
        axis %= rank + new_axis
        if self._keepdims:
            return make.op("Identity", self._x) if axis == self._axis and not new_axis else None
        order = [index for index in range(rank + 1) if index != self._axis]
        order.insert(axis, self._axis)
        moved = self._x if order == sorted(order) else make.op("Transpose", self._x, perm=order)
        if new_axis:
            return make.op("Identity", moved)
        before, after = make.op("Shape", moved, end=axis), make.op("Shape", moved, start=axis + 2)
        size = make.op("ReduceProd", make.op("Shape", moved, start=axis, end=axis + 2))
        return make.op("Reshape", moved, make.op("Concat", before, size, after, axis=0), allowzero=1)

    def _bound(self, index: int) -> ir.Value:
        """Returns the position at which the part at an index begins."""
        if self._computed is None:
            assert self._size is not None, "see above"  # noqa: S101
            return self._make.int64([min(index * self._size, _END)])
        size = self._make.op("Reshape", self._computed, self._make.int64([1]))
        return self._make.op("Mul", size, self._make.int64([index]))
