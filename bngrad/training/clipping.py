"""Clipping of gradients by their global norm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.node_reader import dtype_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.graph.node_makers import NodesAtEnd


def clip_factor(
    make: NodesAtEnd, gradients: Sequence[ir.Value], max_norm: float, scale: ir.Value | None = None
) -> tuple[ir.Value, ir.Value]:
    """The factor that limits the global norm of gradients, as `torch.nn.utils.clip_grad_norm_` has it.

    It is min(max_norm / (norm + 1e-6), 1).

    Args:
        make: Makes nodes.
        gradients: The gradients.
        max_norm: The largest norm.
        scale: A number to multiply the gradients by before, in the type of the factor; None for 1.

    Returns:
        The factor and the norm: scalars, double if any gradient is, else float.
    """
    dtype = (
        ir.DataType.DOUBLE
        if any(dtype_of(gradient) == ir.DataType.DOUBLE for gradient in gradients)
        else ir.DataType.FLOAT
    )
    squares, flat = [], make.int64([-1])
    for gradient in gradients:
        # As a vector: ONNX Runtime may move a Transpose after the sum, and add up in another order.
        square = make.op("ReduceSumSquare", make.op("Reshape", gradient, flat), keepdims=0)
        square.type, square.shape = gradient.type, ir.Shape([])
        squares.append(make.cast(square, dtype))
    total = make.typed("Sum", *squares) if len(squares) > 1 else squares[0]
    norm = make.typed("Sqrt", total)
    if scale is not None:
        norm = make.typed("Mul", norm, scale)
    shifted = make.typed("Add", norm, make.constant(1e-6, dtype))
    quotient = make.typed("Div", make.constant(max_norm, dtype), shifted)
    factor = make.typed("Min", quotient, make.constant(1, dtype))
    return factor if scale is None else make.typed("Mul", factor, scale), norm
