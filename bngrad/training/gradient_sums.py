"""Numbers that all gradients of a step are reduced to: their norm, and whether they are finite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.node_reader import dtype_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.graph.node_makers import NodesAtEnd


def widest(gradients: Sequence[ir.Value]) -> ir.DataType:
    """Returns the type to compute with all gradients in: double if any gradient is, else float."""
    is_double = any(dtype_of(gradient) == ir.DataType.DOUBLE for gradient in gradients)
    return ir.DataType.DOUBLE if is_double else ir.DataType.FLOAT


def sum_of(
    make: NodesAtEnd, reduction: str, gradients: Sequence[ir.Value], *, as_vectors: bool = False
) -> ir.Value:
    """Returns the sum of a reduction of each gradient, a scalar of the widest type.

    Args:
        make: Makes nodes.
        reduction: The op that reduces a gradient to a scalar.
        gradients: The gradients.
        as_vectors: Whether to reduce vectors. ONNX Runtime may move a Transpose after a reduction, and add up in
            another order.
    """
    dtype, scalars = widest(gradients), []
    flat = make.int64([-1]) if as_vectors else None
    for gradient in gradients:
        operand = gradient if flat is None else make.op("Reshape", gradient, flat)
        scalar = make.op(reduction, operand, keepdims=0)
        scalar.type, scalar.shape = gradient.type, ir.Shape([])
        scalars.append(make.cast(scalar, dtype))
    return make.typed("Sum", *scalars) if len(scalars) > 1 else scalars[0]
