"""Clipping of gradients by their global norm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.training.gradient_sums import sum_of, widest

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

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
    dtype = widest(gradients)
    norm = make.typed("Sqrt", sum_of(make, "ReduceSumSquare", gradients, as_vectors=True))
    if scale is not None:
        norm = make.typed("Mul", norm, scale)
    shifted = make.typed("Add", norm, make.constant(1e-6, dtype))
    quotient = make.typed("Div", make.constant(max_norm, dtype), shifted)
    factor = make.typed("Min", quotient, make.constant(1, dtype))
    return factor if scale is None else make.typed("Mul", factor, scale), norm
