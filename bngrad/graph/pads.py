"""Pads of every axis, from the pads of some axes.

New nodes never give Pad its input ``axes``: ONNX Runtime's transpose optimizer permutes the pads as if every axis
had some.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from bngrad.graph.node_reader import constant_of

if TYPE_CHECKING:
    from bngrad.graph.builder import NodeMaker


def pads_of_all_axes(make: NodeMaker, pads: ir.Value, axes: ir.Value, data: ir.Value) -> ir.Value:
    """Returns pads as Pad takes them without axes: those at the start of each axis, then those at the end.

    Args:
        make: The maker of the nodes.
        pads: int64, those at the start of each of the axes, then those at the end.
        axes: int32 or int64, negative ones counted from the last.
        data: The data to pad, of any rank.
    """
    axis_numbers, numbers = constant_of(axes), constant_of(pads)
    if axis_numbers is not None and data.shape is not None:
        rank = len(data.shape)
        places = np.concatenate([axis_numbers % rank, axis_numbers % rank + rank]).astype(np.int64)
        if numbers is not None:
            every = np.zeros(2 * rank, np.int64)
            every[places] = numbers
            return make.int64(every)
        return make.op("ScatterElements", make.int64([0] * (2 * rank)), make.int64(places), pads, axis=0)
    length = make.op("Shape", make.op("Shape", data))
    axes = make.cast(axes, ir.DataType.INT64)
    forward = make.op("Where", make.op("Less", axes, make.int64(0)), make.op("Add", axes, length), axes)
    zeros = make.op("Expand", make.int64(0), make.op("Add", length, length))
    computed = make.op("Concat", forward, make.op("Add", forward, length), axis=0)
    return make.op("ScatterElements", zeros, computed, pads, axis=0)
