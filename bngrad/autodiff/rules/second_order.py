"""The gradient ops of batch norm, and the statistics that they take: what second derivatives need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.autodiff.rule import gradient
from bngrad.autodiff.rules.normalization import added
from bngrad.graph.batch_norm_terms import cast_like
from bngrad.graph.node_reader import dtype_of, like
from bngrad.graph.shapes import shape_of, zeros
from bngrad.opset.functions import DOMAIN
from bngrad.opset.op_attributes import ANY, FLAG

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients


@gradient("BatchNormalizationGrad", domain=DOMAIN, inputs=(0, 1, 2, 3, 4), attributes={"training_mode": FLAG})
def batch_norm_grad(back: Backward) -> Gradients:
    """BatchNormalizationGradGrad of bngrad, which in training mode counts mean and inv_std as functions of X."""
    return _second_order(back, back.x(0), first=1)


@gradient(
    "BatchNormalizationReluGrad",
    domain=DOMAIN,
    inputs=(0, 2, 3, 4, 5),
    zero=(1,),
    attributes={"training_mode": FLAG},
)
def batch_norm_relu_grad(back: Backward) -> Gradients:
    """That of BatchNormalizationGrad with dY = dZ where Z > 0, else 0, and d_dZ = d_dY where Z > 0, else 0."""
    dZ, z = back.x(0), back.x(1)
    zero = like(back, 0, dZ)
    positive = back.op("Greater", z, like(back, 0, z))
    d_dY, *others = _second_order(back, back.op("Where", positive, dZ, zero), first=2)
    return [None if d_dY is None else back.op("Where", positive, d_dY, zero), None, *others]


def _second_order(back: Backward, dY: ir.Value, *, first: int) -> list[ir.Value | None]:
    """Returns the gradients with respect to dY and to the inputs from X on, up to inv_std.

    Args:
        back: The gradient op of a batch norm.
        dY: The gradient that it takes, of its batch norm.
        first: The index of X.
    """
    x, scale, mean, inv_std, axes = (back.x(index) for index in range(first, first + 5))
    mode = back.attribute("training_mode", 0)
    if mode == 0 and (back.needs(first + 2) or back.needs(first + 3)):
        back.refuse(
            "its mean or inv_std depends on what the model is differentiated with respect to; expected constants "
            "where training_mode is 0"
        )
    ddX, ddscale, ddbias = (*back.all_dY, None, None)[:3]
    if ddX is None:
        ddX = zeros(back, back.op("Shape", x), dtype_of(x))
    parameters = [
        zeros(back, shape_of(back, scale), dtype_of(scale)) if value is None else value
        for value in (ddscale, ddbias)
    ]
    d_dY, d_X, d_scale = back.bngrad(
        "BatchNormalizationGradGrad",
        ddX,
        *parameters,
        dY,
        x,
        scale,
        mean,
        inv_std,
        axes=axes,
        training_mode=mode,
    )
    return [d_dY, d_X, d_scale, None, None]


@gradient("BatchNormalizationStatistics", domain=DOMAIN, attributes={"epsilon": ANY})
def batch_norm_statistics(back: Backward) -> Gradients:
    """dX = (d_mean - (X - mean) inv_std^3 d_inv_std) / M, over M elements each."""
    x, axes = back.x(0), back.x(1)
    mean, inv_std = back.y(0), back.y(1)
    d_mean, d_inv_std = (*back.all_dY, None)[:2]
    dtype = dtype_of(mean)
    whole, reduced = (back.op("Cast", back.op("Size", value), to=int(dtype)) for value in (x, mean))
    share = back.op("Div", reduced, whole)
    total = None
    if d_mean is not None:
        total = back.op("Expand", back.op("Unsqueeze", d_mean, axes), back.op("Shape", x))
    if d_inv_std is not None:
        cube = back.op("Mul", inv_std, back.op("Mul", inv_std, inv_std))
        slope = back.op("Unsqueeze", back.op("Neg", back.op("Mul", cube, d_inv_std)), axes)
        centered = back.op("Sub", back.cast(x, dtype), back.op("Unsqueeze", mean, axes))
        total = added(back, total, back.op("Mul", centered, slope))
    return [cast_like(back, back.op("Mul", total, share), dtype, x)]
