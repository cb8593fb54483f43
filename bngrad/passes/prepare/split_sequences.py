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

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.graph.fresh_names import Names

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

    def _bound(self, index: int) -> ir.Value:
        """Returns the position at which the part at an index begins."""
        if self._computed is None:
            assert self._size is not None, "see above"  # noqa: S101
            return self._make.int64([min(index * self._size, _END)])
        size = self._make.op("Reshape", self._computed, self._make.int64([1]))
        return self._make.op("Mul", size, self._make.int64([index]))
