"""The channel dimension and the reduction axes of TensorFlow's data.

If the rank is known, the data keeps its shape, and the axes are all dimensions except the channels. If it is
unknown (in a function body, or because TensorFlow did not know it), the data is reshaped to [N, C, S] or [S, C],
and the result is reshaped back. data_format does not determine the rank: TensorFlow accepts data of rank 4 as
NDHWC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.batch_norm_terms import collapsed_shape
from bngrad.passes.imports.tensorflow.node import channels_last, data_indices, data_rank, read_parameters

if TYPE_CHECKING:
    from bngrad.passes.replace import Emitter


class Layout:
    """The layout of a node's data.

    Args:
        node: A node that was not refused.
        emit: Makes the reshapes.
    """

    def __init__(self, node: ir.Node, emit: Emitter) -> None:
        self._emit = emit
        self._last = channels_last(node)
        self._scale = read_parameters(node)["scale"]
        x = node.inputs[data_indices(node)[0]]
        assert x is not None, "a node without x is refused"  # noqa: S101
        self._x = x
        rank = data_rank(node)
        self._rank = rank or (2 if self._last else 3)
        self._flat = None if rank else self._flat_shape()
        self.axes = emit.axes([d for d in range(self._rank) if d != self._channel()])

    def enter(self, data: ir.Value) -> ir.Value:
        """Returns data in the shape that the op takes."""
        if self._flat is None:
            return data
        # Without allowzero, Reshape reads a size of 0 as "copy the input's size".
        flat = self._emit.op("Reshape", data, self._flat, allowzero=int(not self._last))
        flat.type = data.type
        return flat

    def leave(self, data: ir.Value) -> ir.Value:
        """Returns a result of the op in the shape of x."""
        if self._flat is None:
            return data
        return self._emit.op("Reshape", data, self._emit.op("Shape", self._x), allowzero=1)

    def broadcastable(self, parameter: ir.Value) -> ir.Value:
        """Returns a parameter in a shape that broadcasts against the data."""
        trailing = range(1, self._rank - self._channel())
        if not trailing:
            return parameter
        return self._emit.op("Unsqueeze", parameter, self._emit.constant(list(trailing), ir.DataType.INT64))

    def _channel(self) -> int:
        return self._rank - 1 if self._last else 1

    def _flat_shape(self) -> ir.Value:
        if not self._last:
            return collapsed_shape(self._emit, self._x)
        # Not [0, -1, C]: if a dimension is empty, -1 is ambiguous and ONNX Runtime rejects it.
        rest = self._emit.constant([-1], ir.DataType.INT64)
        return self._emit.op("Concat", rest, self._emit.op("Shape", self._scale), axis=0)
