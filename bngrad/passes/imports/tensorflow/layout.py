"""Where TensorFlow's data has its channels, and what an op has to reduce over.

If the rank is known, the data stays as it is, and axes are all dimensions but the channels'. If nobody knows it
(in the body of a function, or where TensorFlow did not), the data is reshaped to [N, C, S] or to [S, C], and what
comes out is reshaped back: data_format does not tell, for TensorFlow takes 4 dimensions as NDHWC.
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
        emit: Where reshapes go.
    """

    def __init__(self, node: ir.Node, emit: Emitter) -> None:
        self._emit = emit
        self._last = channels_last(node)
        self._scale = read_parameters(node)["scale"]
        x = node.inputs[data_indices(node)[0]]
        assert x is not None  # noqa: S101 - or the node is refused
        self._x = x
        rank = data_rank(node)
        self._rank = rank or (2 if self._last else 3)
        self._flat = None if rank else self._flat_shape()
        self.axes = emit.axes([d for d in range(self._rank) if d != self._channel()])

    def enter(self, data: ir.Value) -> ir.Value:
        """Returns data as the op takes it."""
        if self._flat is None:
            return data
        # An extent of 0 is 0, and not that of the input at the same place.
        flat = self._emit.op("Reshape", data, self._flat, allowzero=int(not self._last))
        flat.type = data.type
        return flat

    def leave(self, data: ir.Value) -> ir.Value:
        """Returns what the op made of data with the shape of x."""
        if self._flat is None:
            return data
        return self._emit.op("Reshape", data, self._emit.op("Shape", self._x), allowzero=1)

    def spread(self, parameter: ir.Value) -> ir.Value:
        """Returns a parameter so that it broadcasts against the data."""
        behind = range(1, self._rank - self._channel())
        if not behind:
            return parameter
        return self._emit.op("Unsqueeze", parameter, self._emit.constant(list(behind), ir.DataType.INT64))

    def _channel(self) -> int:
        return self._rank - 1 if self._last else 1

    def _flat_shape(self) -> ir.Value:
        if not self._last:
            return collapsed_shape(self._emit, self._x)
        # Not [0, -1, C]: beside a dimension of no element -1 can be anything, and ONNX Runtime refuses it.
        rest = self._emit.constant([-1], ir.DataType.INT64)
        return self._emit.op("Concat", rest, self._emit.op("Shape", self._scale), axis=0)
