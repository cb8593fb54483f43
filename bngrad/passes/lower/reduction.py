"""Scale, an op in the gradients of means, in standard ONNX."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.graph.batch_norm_terms import cast_like, statistics_dtype
from bngrad.graph.node_reader import static_shape
from bngrad.opset.op_attributes import FLAG
from bngrad.passes.lower.lowering import lowering

if TYPE_CHECKING:
    from bngrad.passes.lower.lowering import Outputs
    from bngrad.passes.lower.site import Site


@lowering("Scale", attributes={"scale_down": FLAG})
def scale(site: Site) -> Outputs:
    """Scale(X, factor) {scale_down} -> X / factor if scale_down, else X factor.

    The factor is one number of any type. It may not fit 16 bits, nor its inverse: such X is computed in float.
    """
    x, factor = site.x(0), site.x(1)
    dtype = statistics_dtype(x)
    if static_shape(factor) != ():
        factor = site.op("Reshape", factor, site.int64([]))
    op_type = "Div" if site.attribute("scale_down", 0) else "Mul"
    result = site.op(op_type, site.cast(x, dtype), site.cast(factor, dtype))
    return [cast_like(site, result, dtype, x)]
