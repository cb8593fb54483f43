"""Layer norm and RMS norm, whose scale and bias broadcast to X."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.autodiff.rule import gradient
from bngrad.autodiff.rules.normalization import added, float32_epsilon, through_statistics
from bngrad.graph.batch_norm_terms import cast_like, inverse_std, statistics_dtype
from bngrad.graph.broadcasting import sum_to
from bngrad.graph.node_reader import dtype_of, like
from bngrad.graph.shapes import shape_of, zeros
from bngrad.opset.known_shapes import known_shape
from bngrad.opset.op_attributes import AXIS, NORM
from bngrad.opset.ort_dialect import MICROSOFT

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients


@gradient("LayerNormalization", inputs=(0, 1, 2), versions=(17,), attributes={**AXIS, **NORM})
def layer_norm(back: Backward) -> Gradients:
    """LayerNormalizationGrad(dY, X, scale, mean, inv_std); the statistics are the node's other outputs.

    Where the loss reads these, dX += (d_mean - inv_std^3 (X - mean) d_inv_std) / M, for M elements each.
    """
    dY, d_mean, d_inv_std = (*back.all_dY, None, None)[:3]
    mean, inv_std = back.y(1), back.y(2)
    dX = dscale = dbias = None
    if dY is not None:
        dX, dscale, dbias = _through_y(back, dY, [mean, inv_std])
    else:
        dscale, dbias = (
            zeros(back, shape_of(back, back.x(index)), dtype_of(back.x(index))) if back.needs(index) else None
            for index in (1, 2)
        )
    if back.needs(0) and (d_mean is not None or d_inv_std is not None):
        d_var = None
        if d_inv_std is not None:
            # inv_std = (var + epsilon)^-1/2, so d inv_std / d var = -inv_std^3 / 2.
            cube = back.op("Mul", inv_std, back.op("Mul", inv_std, inv_std))
            d_var = back.op("Mul", back.op("Mul", d_inv_std, cube), like(back, -0.5, d_inv_std))
        dX = added(back, dX, through_statistics(back, d_mean, d_var, 1.0))
    return [dX, dscale, dbias]


@gradient("RMSNormalization", inputs=(0, 1), versions=(23,), attributes={**AXIS, **NORM})
def rms_norm(back: Backward) -> Gradients:
    """SimplifiedLayerNormalizationGrad(dY, X, scale, inv_std), where inv_std = 1 / sqrt(E[X^2] + epsilon)."""
    x, axis = back.x(0), back.attribute("axis", -1)
    dtype = statistics_dtype(x)
    wide = back.cast(x, dtype)
    axes = back.int64(list(range(back.rank(x)))[axis:])
    mean_square = back.op("ReduceMean", back.op("Mul", wide, wide), axes, keepdims=1)
    mean_square.dtype = dtype
    return _through_y(back, back.dY, [inverse_std(back, mean_square, float32_epsilon(back), dtype)])[:2]


def _through_y(back: Backward, dY: ir.Value, statistics: list[ir.Value]) -> Gradients:
    """Returns dX, dscale and dbias for dY.

    ORT's gradient ops take a scale of the shape of X from ``axis`` on. A repeated scale is multiplied by dY, and
    its gradient is summed over the axes along which it was repeated: dscale = sum dY xhat, dbias = sum dY.

    Args:
        back: A layer norm or an RMS norm.
        dY: The gradient of its Y.
        statistics: [mean, inv_std], or [inv_std] for an RMS norm.
    """
    x, scale, axis, with_mean = back.x(0), back.x(1), back.attribute("axis", -1), len(statistics) == 2
    op_type = "LayerNormalizationGrad" if with_mean else "SimplifiedLayerNormalizationGrad"
    names = ["dX", "dscale", "dbias"] if with_mean else ["dX", "dscale"]

    def of_whole_scale(dY: ir.Value, scale: ir.Value) -> Sequence[ir.Value]:
        inputs = (dY, x, scale, *statistics)
        return back.outputs_of(op_type, *inputs, outputs=names, domain=MICROSOFT, axis=axis)

    if all(_is_whole(parameter, x, axis) for parameter in (scale, back.optional(2)) if parameter is not None):
        return [*of_whole_scale(dY, scale), None][:3]
    dtype = statistics_dtype(x)
    wide = back.cast(dY, dtype)
    dX = dscale = dbias = None
    if back.needs(0):
        ones = back.op("Expand", like(back, 1, scale), back.op("Shape", x, start=axis))
        dX = of_whole_scale(back.op("Mul", dY, scale), ones)[0]
    if back.needs(1):
        *mean, inv_std = (back.cast(value, dtype) for value in statistics)
        data = back.cast(x, dtype)
        centered = back.op("Sub", data, mean[0]) if mean else data
        of_xhat = back.op("Mul", wide, back.op("Mul", centered, inv_std))
        dscale = cast_like(back, sum_to(back, of_xhat, scale, x), dtype, scale)
    if back.needs(2):
        bias = back.x(2)
        dbias = cast_like(back, sum_to(back, wide, bias, x), dtype, bias)
    return [dX, dscale, dbias]


def _is_whole(parameter: ir.Value, x: ir.Value, axis: int) -> bool:
    """Returns whether a scale or a bias is known to have the shape of X from an axis on."""
    shape, data = known_shape(parameter), known_shape(x)
    return shape is not None and data is not None and None not in shape and shape == data[axis:]
