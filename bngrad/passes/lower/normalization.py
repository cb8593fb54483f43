"""Gradients of layer norm and similar ops in standard ONNX.

For Y = scale xhat + bias, where xhat = (X - mean) inv_std and the statistics are of the axes from ``axis`` on::

    dX     = inv_std (g - xhat E[g xhat] - E[g])    g = dY scale, and E is the mean over those axes
    dscale = sum dY xhat                            over the axes before them, as is
    dbias  = sum dY

The simplified form has no mean: xhat = X inv_std, and dX goes without E[g].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.graph.batch_norm_terms import cast_like, statistics_dtype
from bngrad.graph.node_reader import axis_refusal
from bngrad.graph.nodes import is_read, known_rank
from bngrad.opset.op_attributes import AXIS, NORM
from bngrad.passes.lower.lowering import lowering

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from bngrad.passes.lower.lowering import Outputs
    from bngrad.passes.lower.site import Site


def refusal(node: ir.Node) -> str | None:
    """Returns the reason why a node cannot be lowered; None if it can."""
    rank = known_rank(node.inputs[:2])
    if rank is None:
        return "the rank of its X is unknown; expected a model that shape inference can read"
    return axis_refusal(node, -1, rank)


@lowering("LayerNormalizationGrad", refusal=refusal, attributes={**AXIS, **NORM})
def layer_normalization_grad(site: Site) -> Outputs:
    """LayerNormalizationGrad(dY, X, scale, mean, inv_std) {axis} -> dX, dscale, dbias."""
    dtype = statistics_dtype(site.x(1))
    centered = site.op("Sub", site.cast(site.x(1), dtype), site.cast(site.x(3), dtype))
    return _gradients(site, centered, site.cast(site.x(4), dtype), dtype, with_mean=True)


@lowering("SimplifiedLayerNormalizationGrad", refusal=refusal, attributes={**AXIS, **NORM})
def simplified_layer_normalization_grad(site: Site) -> Outputs:
    """SimplifiedLayerNormalizationGrad(dY, X, scale, inv_std) {axis} -> dX, dscale."""
    dtype = statistics_dtype(site.x(1))
    return _gradients(site, site.cast(site.x(1), dtype), site.cast(site.x(3), dtype), dtype, with_mean=False)


def _gradients(
    site: Site, centered: ir.Value, inv_std: ir.Value, dtype: ir.DataType, *, with_mean: bool
) -> Outputs:
    """The gradients that the node has, by the formulas above."""
    x, scale, outputs = site.x(1), site.x(2), site.node.outputs
    axes, axis = list(range(known_rank(site.node.inputs[:2]) or 0)), site.attribute("axis", -1)
    dY, xhat = site.cast(site.x(0), dtype), site.op("Mul", centered, inv_std)

    def mean(value: ir.Value) -> ir.Value:
        return site.reduce("ReduceMean", value, axes[axis:], keepdims=True)

    def total(value: ir.Value) -> ir.Value:
        result = site.reduce("ReduceSum", value, axes[:axis], keepdims=False) if axes[:axis] else value
        return cast_like(site, result, dtype, scale)

    results: list[ir.Value | None] = [None] * len(outputs)
    if _is_wanted(outputs, 0):
        g = site.op("Mul", dY, site.cast(scale, dtype))
        of_xhat = site.op("Sub", g, site.op("Mul", xhat, mean(site.op("Mul", g, xhat))))
        if with_mean:
            of_xhat = site.op("Sub", of_xhat, mean(g))
        results[0] = cast_like(site, site.op("Mul", of_xhat, inv_std), dtype, x)
    if _is_wanted(outputs, 1):
        results[1] = total(site.op("Mul", dY, xhat))
    if _is_wanted(outputs, 2):
        results[2] = total(dY)
    return results


def _is_wanted(outputs: Sequence[ir.Value], index: int) -> bool:
    return index < len(outputs) and is_read(outputs[index])
