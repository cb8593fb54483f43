"""Gradients of ops that are a linear map of each axis.

Applied to the identity matrix along an axis, such an op gives the matrix M of that axis, n by m: row i holds the
contribution of element i of the input to each element of the output. So dX = M dY along the axis.

M comes from the op itself, so that it is right for every mode. Where the size is known, a runtime computes it
once, when it loads the model.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.node_reader import dtype_of
from bngrad.graph.shapes import known_dimension, shape_of, zeros

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bngrad.graph.builder import NodeMaker


def identity(make: NodeMaker, size: ir.Value) -> ir.Value:
    """Returns the identity matrix, in float; its size is a vector of one number."""
    square = make.op("Concat", size, size, axis=0)
    return make.op("EyeLike", zeros(make, square, ir.DataType.FLOAT))


def pull_back(make: NodeMaker, dY: ir.Value, matrices: Mapping[int, ir.Value], x: ir.Value, rank: int) -> ir.Value:
    """Returns dX = M dY along each axis that has a matrix M, whose type is float.

    Args:
        make: The maker of the nodes.
        dY: The gradient of the output.
        matrices: M by axis.
        x: The input, whose shape the result has.
        rank: The rank of both.
    """
    result, merged = dY, False
    for axis, matrix in sorted(matrices.items(), reverse=True):
        matrix.dtype = ir.DataType.FLOAT
        factor = make.cast(matrix, dtype_of(x))
        if axis == rank - 1:
            result = make.op("MatMul", result, make.op("Transpose", factor))
            continue
        if axis < rank - 2:
            # The axes after this one are merged, so that a single product of matrices is enough.
            result = _merged(make, result, x, axis)
            merged = True
        result = make.op("MatMul", factor, result)
    return make.op("Reshape", result, shape_of(make, x), allowzero=1) if merged else result


def _merged(make: NodeMaker, result: ir.Value, x: ir.Value, axis: int) -> ir.Value:
    """Merges all axes after one, in which the result has the shape of x.

    Their size is not -1, which Reshape does not accept for an empty batch.
    """
    later_axes = range(axis + 1, len(x.shape or ()))
    sizes = [size for later in later_axes if (size := known_dimension(x, later)) is not None]
    if prod(sizes) and len(sizes) == len(later_axes):
        return make.op("Reshape", result, make.int64([0] * (axis + 1) + [prod(sizes)]))
    merged = make.op("ReduceProd", make.op("Shape", x, start=axis + 1), keepdims=1)
    # Not 0 for the first axes: ONNX Runtime writes -1 for the only part of a shape that it does not know.
    shape = make.op("Concat", make.op("Shape", result, end=axis + 1), merged, axis=0)
    return make.op("Reshape", result, shape, allowzero=1)
